"""Lines that take turns: nobody is passed over, and a long line delays itself alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.fair_lines import FairLines


def test_lines_take_turns() -> None:
    lines: FairLines[str] = FairLines()
    for number in range(6):
        lines.push("evil", f"e{number}")
    assert lines.take(2) == ["e0", "e1"]
    lines.push("shop", "s0")
    lines.push("shop", "s1")
    assert lines.length("evil") == 4
    assert lines.take(3) == ["e2", "s0", "e3"]
    assert lines.take(9) == ["s1", "e4", "e5"]
    assert not lines
    assert lines.take(9) == []


@given(
    pushed=st.lists(st.tuples(st.sampled_from("abcd"), st.integers()), max_size=60),
    sizes=st.lists(st.integers(1, 7), min_size=1),
)
def test_everything_is_taken_once_and_in_the_order_of_its_line(
    pushed: list[tuple[str, int]], sizes: list[int]
) -> None:
    lines: FairLines[tuple[str, int]] = FairLines()
    for line, item in pushed:
        lines.push(line, (line, item))
    taken: list[tuple[str, int]] = []
    while lines:
        some = lines.take(sizes[len(taken) % len(sizes)])
        assert some
        taken += some
    for name in "abcd":
        assert [one for one in taken if one[0] == name] == [o for o in pushed if o[0] == name]


@given(
    others=st.dictionaries(st.sampled_from("bcdefgh"), st.integers(1, 500)),
    group=st.integers(8, 40),
)
def test_who_comes_last_is_served_with_the_next_group(others: dict[str, int], group: int) -> None:
    """As long as a group has room for one of each line."""
    lines: FairLines[str] = FairLines()
    for name, length in others.items():
        for _ in range(length):
            lines.push(name, name)
    lines.push("a", "a")
    assert "a" in lines.take(group)
