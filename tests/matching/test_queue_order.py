"""Pages of queues in an order are those of the sorted list, wherever they begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching import queue_order
from maitred.matching.queue_order import QueueFilter, QueueOrder, QueuePlace

NAMES = st.tuples(st.sampled_from(["a", "b"]), st.text("xyXY-", min_size=1, max_size=4))
VALUES = st.dictionaries(NAMES, st.sampled_from([0.0, 1.0, 2.5, 7.0]), max_size=20)
FILTERS = st.builds(
    QueueFilter,
    st.sampled_from(["", "a", "c"]),
    st.sampled_from(["", "x", "XY"]),
    st.sampled_from([None, ["a"], ["a", "b"], []]),
)


def ordered(values: dict[tuple[str, str], float]) -> QueueOrder:
    order = QueueOrder()
    for _ in order.update(values):
        pass
    return order


@given(VALUES, FILTERS, st.integers(1, 5))
def test_pages_put_together_are_the_list(
    values: dict[tuple[str, str], float], wanted: QueueFilter, most: int
) -> None:
    order = ordered(values)
    expected = sorted(
        (-value, namespace, queue)
        for (namespace, queue), value in values.items()
        if wanted.namespace in ("", namespace)
        and (wanted.within is None or namespace in wanted.within)
        and wanted.match.lower() in queue.lower()
    )
    found: list[QueuePlace] = []
    after = None
    while True:
        page = order.page(after, most, wanted)
        assert page.total == len(expected)
        found += page.places
        assert page.more is (len(found) < len(expected))
        if not page.more:
            break
        assert len(page.places) == most
        after = page.places[-1]
    assert found == expected


def test_a_page_begins_after_a_place_at_which_no_queue_is_any_more() -> None:
    order = ordered({("n", "a"): 3.0, ("n", "b"): 2.0, ("n", "d"): 2.0})
    for after, names in (
        ((-4.0, "n", "z"), "abd"),
        ((-3.0, "n", "a"), "bd"),
        ((-2.0, "n", "c"), "d"),
        ((-1.0, "", ""), ""),
    ):
        page = order.page(after, 9, QueueFilter())
        assert "".join(queue for *_, queue in page.places) == names


@given(VALUES, VALUES)
def test_an_order_is_brought_up_to_date_at_once_in_the_end(
    before: dict[tuple[str, str], float], after: dict[tuple[str, str], float]
) -> None:
    order = ordered(before)
    first = order.page(None, 99, QueueFilter())
    portions = order.update(after)
    for _ in portions:
        assert order.page(None, 99, QueueFilter()) == first
    assert order.page(None, 99, QueueFilter()) == ordered(after).page(None, 99, QueueFilter())


def test_many_queues_are_put_in_order_in_portions() -> None:
    many = 10 * queue_order.PORTION
    order = QueueOrder()
    values = {("n", f"{number * 7919 % many:05}"): float(number % 3) for number in range(many)}
    assert sum(1 for _ in order.update(values)) > 10
    places = order.page(None, many, QueueFilter()).places
    assert list(places) == sorted((-value, *name) for name, value in values.items())
    assert sum(1 for _ in order.update(dict(values))) == 0, "nothing has changed"
