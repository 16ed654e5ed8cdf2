"""Every name can be a label, and no name can be more than that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.exposition import Family, Samples, page
from maitred.metrics.histogram import WORK_BOUNDS, Histogram
from tests.monitor.scraping import lint, parsed

TASKS = Family("maitred_tasks", "gauge", "Some tasks.", ("queue",))
WAITS = Family("maitred_waits_seconds", "histogram", "Some waits.", ("queue",))
HOSTILE = (
    'x"} 1\nmaitred_evil 1\n# TYPE maitred_tasks counter',
    "\\",
    "\\n",
    '"',
    "<script>alert(1)</script>",
    "{}",
    "a,b=c",
)


@given(st.sets(st.text(alphabet=st.characters(exclude_characters="\r")), min_size=1, max_size=8))
def test_every_label_comes_back_as_it_was(names: set[str]) -> None:
    samples = Samples(shard=0)
    for name in names:
        samples.add(TASKS, 1, queue=name)
    found = parsed(page([TASKS], [samples.lines]))
    assert {dict(labels)["queue"] for _, labels in found.samples} == names


def test_hostile_names_are_no_more_than_labels() -> None:
    samples = Samples()
    for name in HOSTILE:
        samples.add(TASKS, 1, queue=name)
    text = page([TASKS, WAITS], [samples.lines])
    found = parsed(text)
    assert found.families() == {"maitred_tasks"}
    assert len(found.samples) == len(HOSTILE)
    lint(text)


def test_the_samples_of_several_processes_are_one_family() -> None:
    parts = []
    for shard in range(3):
        samples = Samples(shard=shard)
        samples.add(TASKS, shard, queue="q")
        waits = Histogram()
        waits.add(0.002, 3)
        samples.histogram(WAITS, waits, queue="q")
        parts.append(samples.lines)
    text = page([WAITS, TASKS], parts)
    found = parsed(text)
    assert found.value("maitred_tasks") == 3
    assert found.value("maitred_waits_seconds_count") == 9
    assert text.index("maitred_waits_seconds") < text.index("maitred_tasks")
    lint(text)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 100))))
def test_a_histogram_counts_every_value_once(values: list[tuple[float, int]]) -> None:
    histogram = Histogram()
    for value, times in values:
        histogram.add(value, times)
    assert histogram.count == sum(times for _, times in values)
    for index, bound in enumerate(WORK_BOUNDS):
        below = sum(times for value, times in values if value <= bound)
        assert sum(histogram.counts[: index + 1]) == below
