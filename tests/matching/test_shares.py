"""What the root tells a worker of how the others do."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.attendance import Attendance
from maitred.matching.shares import Shares
from tests.matching.driver import Driver

LONG = 1000.0


def test_whoever_fails_much_hears_at_once_how_the_others_do() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    driver.attend(2, LONG)
    slightly = driver.attend(1, LONG, good=0.9)
    assert not slightly.answered, "it makes no difference"
    told = driver.attend(1, LONG, good=0.5)
    assert (told.value, told.best) == ("", 1.0)
    again = driver.attend(1, LONG, good=0.4)
    assert not again.answered, "it knows"


def test_whoever_is_alone_hears_nothing() -> None:
    driver = Driver()
    driver.attend(2, LONG, state="offline")
    asked = driver.attend(1, good=0.1)
    assert not asked.answered
    driver.pass_time(5.0)
    assert asked.best == 0.0


@pytest.mark.parametrize("how", ["fails as well", "leaves", "goes offline"])
def test_when_the_best_is_no_better_those_who_fail_hear_of_it(how: str) -> None:
    driver = Driver()
    best = driver.attend(2, LONG)
    driver.attend(3, LONG, good=0.35)
    driver.attend(1, LONG, good=0.3)
    low, other = driver.attend(1, LONG, good=0.3), driver.attend(3, LONG, good=0.35)
    assert [one.answers for one in (low, other)] == [[], []]
    if how == "leaves":
        driver.attend_no_more(best)
        driver.pass_time(3.0)
    elif how == "goes offline":
        driver.attend(2, LONG, state="offline")
    else:
        driver.attend(2, LONG, good=0.4)
    assert low.answered
    assert other.answered
    assert (low.best, other.best) == ((0.4, 0.4) if how == "fails as well" else (0.35, 0.3))


def test_a_worker_that_a_gateway_suspects_is_no_example() -> None:
    driver = Driver()
    best = driver.attend(2, LONG)
    driver.attend(1, LONG, good=0.3)
    low = driver.attend(1, LONG, good=0.3)
    driver.partition.suspect(best.session, driver.now)
    driver.turn()
    assert low.best == 0.0


def test_the_first_answer_tells_it_too() -> None:
    driver = Driver()
    driver.attend(1, LONG, good=0.9)
    driver.attend(2, LONG)
    assert [one.best for one in driver.asked if one.answered] == [0.0, 0.9]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, None])), max_size=30
    )
)
def test_the_best_beside_somebody_is_what_a_look_at_all_says(
    said: list[tuple[int, float | None]],
) -> None:
    shares, known = Shares(), dict[bytes, float]()
    random = Random(1)
    for number, good in said:
        session = bytes([number])
        if good is None:
            shares.left(session)
            known.pop(session, None)
        else:
            shares.told(Attendance(session, "w", "", 1, 0, "online", 0.0, good=good))
            known[session] = good
        if random.random() < 0.5:
            continue  # not asked every time
        for asker in map(bytes, ([one] for one in range(7))):
            others = [share for other, share in known.items() if other != asker]
            assert shares.best_beside(asker) == max(others, default=0.0)
