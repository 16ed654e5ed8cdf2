"""The way back from a page: everything that was written is read."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.exposition import Family, Samples, page
from maitred.metrics.page_reader import HistogramSample, NumberSample, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

SOLD = Family("shop_sold_total", "counter", "Things that were sold.", ("what",))
OPEN = Family("shop_open", "gauge", "1: it is open.")
SECONDS = Family("shop_serving_seconds", "histogram", "How long it took.", ("what",))
FAMILIES = (SOLD, OPEN, SECONDS)

# A carriage return is written as a space.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))
NUMBERS = st.integers(0, 2**63) | st.floats(allow_nan=False)


@given(
    st.dictionaries(NAMES, NUMBERS, max_size=4),
    NUMBERS,
    st.dictionaries(NAMES, st.lists(st.integers(0, 2**40), min_size=3, max_size=3), max_size=3),
)
def test_a_page_is_read_as_it_was_written(
    sold: dict[str, float], is_open: float, serving: dict[str, Sequence[int]]
) -> None:
    samples = Samples(shard=1)
    samples.add(OPEN, is_open)
    for what, number in sold.items():
        samples.add(SOLD, number, what=what)
    for what, counts in serving.items():
        samples.buckets(SECONDS, (0.5, 10), counts, 1.5, what=what)
    found = {one.name: one for one in read_page(page(FAMILIES, [samples.lines]))}
    assert [(one.kind, one.text) for one in found.values()] == [
        (one.kind, one.text) for one in FAMILIES if one.name in found
    ]
    assert found[OPEN.name].numbers == [NumberSample((("shard", "1"),), is_open)]
    assert type(found[OPEN.name].numbers[0].value) is type(is_open)
    if sold:
        assert found[SOLD.name].numbers == [
            NumberSample((("what", what), ("shard", "1")), number) for what, number in sold.items()
        ]
    if serving:
        assert found[SECONDS.name].histograms == [
            HistogramSample((("what", what), ("shard", "1")), (0.5, 10.0), tuple(counts), 1.5)
            for what, counts in serving.items()
        ]
    assert set(found) == {OPEN.name} | ({SOLD.name} if sold else set()) | (
        {SECONDS.name} if serving else set()
    )


def test_a_family_without_samples_is_left_out() -> None:
    assert read_page("# HELP shop_sold_total Things.\n# TYPE shop_sold_total counter\n\n") == []


def test_buckets_are_counted_each_for_itself() -> None:
    samples = Samples()
    samples.buckets(SECONDS, (1,), (2, 3), 9.0)
    (family,) = read_page(page(FAMILIES, [samples.lines]))
    (one,) = family.histograms
    assert one.counts == (2, 3)
    assert list(accumulate(one.counts)) == [2, 5]
