"""The query table: numbers, bounds, filters, and what it shows of a query."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from maitred.dispatch.ask import Ask
from maitred.dispatch.query_states import FOLLOWS, UNDER_WAY
from maitred.dispatch.query_table import MASKED, QueryEntry, QueryTable
from maitred.errors import InternalError, Overloaded
from maitred.protocol.queries import QueryFilter, QueryStatus
from maitred.settings import Querying


def ask(*args: object, **fields: Any) -> Ask:  # noqa: ANN401 - fields of Ask
    known: dict[str, Any] = {"namespace": "n", "queue": "q", "deadline": 9.0}
    return Ask(**{"payload": msgpack.encode(args), **known, **fields})


def table(**settings: Any) -> QueryTable:  # noqa: ANN401
    return QueryTable(Querying(**settings), "abcd1234", "door")


def test_numbers_begin_at_one() -> None:
    made = table()
    assert [made.enter(ask(), 1.0).sequence for _ in range(3)] == [1, 2, 3]
    assert [row.sequence for row in made.rows()] == [1, 2, 3]


def test_a_life() -> None:
    made = table()
    entry = made.enter(ask("select 1", user="ann"), 10.0)
    assert made.under_way == 1
    made.move(entry, "running", 11.0)
    made.move(entry, "done", 12.0)
    with pytest.raises(InternalError, match="cannot be lost after it was done"):
        made.move(entry, "lost", 13.0, "why")
    (row,) = made.rows()
    assert (row.status, row.received_at, row.returned_at, row.error) == ("done", 10.0, 12.0, "")
    assert (row.user, row.query, row.gateway) == ("ann", "select 1", "abcd1234")
    assert made.under_way == 0
    assert made.counts["done"] == made.counts["running"] == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(sorted(FOLLOWS))), max_size=60))
def test_only_allowed_changes_and_never_one_too_many(steps: list[tuple[int, QueryStatus]]) -> None:
    made = table(table_rows=4, under_way=6)
    entries: list[QueryEntry] = []
    for number, status in steps:
        if number >= len(entries):
            try:
                entries.append(made.enter(ask(), 0.0))
            except Overloaded:
                assert made.under_way == 6
            continue
        entry = entries[number]
        before = entry.status
        try:
            made.move(entry, status, 1.0)
        except InternalError:
            assert status not in FOLLOWS[before]
            assert entry.status == before
        else:
            assert status in FOLLOWS[before]
        under_way = [one for one in entries if one.status in UNDER_WAY]
        assert made.under_way == len(under_way)
        assert all(one.sequence in made for one in under_way), "never dropped"
        assert len(made) <= max(4, len(under_way))


def test_those_that_are_over_longest_make_room() -> None:
    made = table(table_rows=3)
    first, second, third = (made.enter(ask(), 0.0) for _ in range(3))
    made.move(second, "refused", 1.0, "r")
    made.move(first, "refused", 2.0, "r")
    made.enter(ask(), 3.0)
    assert [row.sequence for row in made.rows()] == [1, 3, 4]
    made.enter(ask(), 3.0)
    assert [row.sequence for row in made.rows()] == [3, 4, 5]
    made.enter(ask(), 3.0)
    assert third.sequence in made


def test_filters() -> None:
    made = table()
    one = made.enter(ask(user="ann"), 1.0)
    two = made.enter(ask(queue="other"), 2.0)
    made.enter(ask(namespace="m"), 3.0)
    one.worker = "w1"
    made.move(two, "running", 9.0)

    def found(**fields: Any) -> list[int]:  # noqa: ANN401
        return [row.sequence for row in made.rows(QueryFilter(**fields))]

    assert found(user="ann") == found(worker="w1") == found(sequence=1) == [1]
    assert found(queue="other") == found(status="running") == found(changed_since=8.0) == [2]
    assert found(namespace="m") == [3]
    assert found(most=2) == [2, 3], "the newest"
    assert found(gateway="abcd") == found(gateway="door") == found(gateway="ABCD") == [1, 2, 3]
    assert found(gateway="ffff") == found(sequence=77) == []


def test_what_is_shown() -> None:
    made = table(text_letters=10)
    made.enter(ask("select * from quotes"), 0.0)
    made.enter(ask(1, "a"), 0.0)
    made.enter(ask(text="as the door has it"), 0.0)
    made.enter(ask("long " * 1000), 0.0)
    made.enter(ask(payload=b"\xff\xfehello"), 0.0)
    made.enter(ask(payload=b"\xc1"), 0.0)
    assert [row.query for row in made.rows()] == [
        "select * f",
        '[1,"a"]',
        "as the doo",
        "long long ",
        "hello",
        "",
    ]
    masked = table(mask=True)
    masked.enter(ask("secret"), 0.0)
    masked.enter(ask(text="secret"), 0.0)
    assert {row.query for row in masked.rows()} == {MASKED}


def test_no_room() -> None:
    made = table(under_way=1)
    made.enter(ask(), 0.0)
    with pytest.raises(Overloaded) as refused:
        made.enter(ask(), 0.0)
    assert refused.value.retry_after
