"""How many slots are offered where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from maitred.protocol.tasks import TASKS_MAX, End
from maitred.worker.completions import pieces
from maitred.worker.supply import spread, to_offer


def test_one_queue_gets_what_is_free() -> None:
    assert to_offer(32, [0]) == [32]
    assert to_offer(32, [30]) == [2]
    assert to_offer(3, [3]) == [0]
    assert to_offer(0, [0]) == [0]


def test_several_queues_share_and_each_has_one() -> None:
    assert to_offer(32, [0, 0]) == [16, 16]
    assert to_offer(16, [16, 0]) == [0, 8]
    assert to_offer(1, [0, 0, 0]) == [1, 1, 1]
    assert to_offer(0, [3, 0]) == [0, 0]


@given(some.integers(0, 100), some.lists(some.integers(0, 100), min_size=1, max_size=10))
def test_nobody_is_forgotten_while_anything_is_free(free: int, on_offer: list[int]) -> None:
    wanted = to_offer(free, on_offer)
    assert all(more >= 0 for more in wanted)
    if free:
        assert all(out + more >= 1 for out, more in zip(on_offer, wanted, strict=True))
    assert sum(wanted) <= max(free, len(on_offer) if free else 0)


@given(some.integers(1, 1000), some.integers(1, 64))
def test_slots_are_spread_evenly_and_none_is_lost(slots: int, partitions: int) -> None:
    shares = spread(slots, partitions)
    assert sum(shares) == slots
    assert len(shares) == min(slots, partitions)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


@given(some.lists(some.integers(0, 600_000), min_size=1, max_size=20))
def test_ends_are_cut_into_messages_and_none_is_lost(sizes: list[int]) -> None:
    ends = [End(number, 1, bytes(16), 0, bytes(size)) for number, size in enumerate(sizes)]
    cut = list(pieces(ends))
    assert [end for piece in cut for end in piece] == ends
    assert all(piece and sum(len(end.body) for end in piece[:-1]) <= 2**20 for piece in cut)


def test_no_message_has_more_ends_than_the_protocol_allows() -> None:
    ends = [End(number, 1, bytes(16)) for number in range(TASKS_MAX + 1)]
    assert [len(piece) for piece in pieces(ends)] == [TASKS_MAX, 1]
