"""The last hour of a worker or a shard: what was measured, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.gauge_series import GaugeSeries, GaugeTable
from maitred.metrics.points import STEPS
from maitred.metrics.series import BACK_STEPS

FIRST = 180_000_000
"""A step of the year 2027."""


@given(st.lists(st.integers(1, 2 * STEPS), max_size=12), st.integers(1, STEPS))
def test_each_step_has_what_was_measured_in_it(gaps: list[int], steps: int) -> None:
    series = GaugeSeries(2)
    measured: dict[int, float] = {}
    step = FIRST
    for gap in gaps:
        step += gap
        measured[step] = float(step % 1_000)
        series.write(step, (measured[step], None))
    # The reader may be some steps further than the writer, as after a worker has gone.
    for last in (step, step + 3, step + STEPS):
        wanted = range(last - steps + 1, last + 1)
        first = step - STEPS
        known = [measured.get(one) if one > first else None for one in wanted]
        assert series.read(last, steps) == [known, [None] * steps]


def test_a_clock_that_is_set_back() -> None:
    series = GaugeSeries(1)
    series.write(FIRST, (1,))
    series.write(FIRST - BACK_STEPS, (2,))
    assert series.read(FIRST, 2) == [[None, 1]]
    series.write(FIRST - 100, (3,))
    assert series.read(FIRST - 100, 2) == [[None, 3]]
    assert series.read(FIRST, 1) == [[None]]


def test_a_full_table_prefers_workers_that_are_there() -> None:
    table = GaugeTable[str](1, most=2)
    for step, names in enumerate((("ant", "bee"), ("ant", "bee", "cat"), ("bee", "cat")), FIRST):
        for name in names:
            table.write(name, step, (7,))
    assert len(table) == 2
    assert table.read("cat", FIRST + 2, 3) == [], "the others were written a moment ago"
    table.write("bee", FIRST + 3, (7,))
    table.write("cat", FIRST + 3, (8,))
    assert table.read("cat", FIRST + 3, 3) == [[None, None, 8]]
    assert table.read("ant", FIRST + 3, 3) == []
    table.forget(FIRST + 3 + STEPS - 1)
    assert len(table) == 2
    table.forget(FIRST + 3 + STEPS)
    assert len(table) == 0
