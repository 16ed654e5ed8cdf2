"""The example pool's handlers, called as the functions that they are."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

import pytest

from maitred.app.attempt import running
from maitred.example import market
from maitred.example.tables import ROWS_MAX, SYMBOLS, Tables

PATIENCE_SECONDS = 20
ENDLESS = (
    "with recursive c(n) as (select 1 union all select n + 1 from c where n < 1e12) "
    "select count(*) from c"
)


def test_the_quotes_of_the_paper() -> None:
    rows = market.today("select * from quote where sym = 'FDP'")
    assert len(rows) == 10
    assert rows[0] == {
        "date": "2016-02-16",
        "sym": "FDP",
        "time": "09:30:00",
        "bid": 100.0,
        "ask": 101.0,
    }
    assert rows[3] == {
        "date": "2016-02-16",
        "sym": "FDP",
        "time": "11:00:00",
        "bid": 100.03,
        "ask": 101.03,
    }
    assert market.today("select price, size from trade limit 1") == [{"price": 100.0, "size": 100}]


def test_the_days_before() -> None:
    (told,) = market.history("select count(distinct date) days, max(date) last from trade")
    assert told == {"days": market.HISTORY_DAYS, "last": "2016-01-20"}
    assert [row["sym"] for row in market.history("select distinct sym from quote")] == [*SYMBOLS]


def test_rows_are_the_same_in_every_process_and_thread() -> None:
    sql = "select sum(bid) bids, sum(ask) asks, count(*) n from quote"
    here = Tables([market.TODAY]).ask(sql)
    assert here == market.today(sql)
    there: list[Any] = []
    thread = threading.Thread(target=lambda: there.append(market.today(sql)))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert there == [here]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from qoute", "no such table: qoute"),
        ("delete from quote", "not authorized"),
        ("create table mine (n)", "not authorized"),
        ("attach '/tmp/x' as other", "not authorized"),
        ("pragma writable_schema = 1", "not authorized"),
        ("select load_extension('x')", "not authorized"),
        ("select 1; select 2", "one statement at a time"),
        ("select randomblob(100000000)", "too big"),
        ("nonsense", "syntax error"),
    ],
)
def test_bad_queries_have_errors_of_their_own(sql: str, said: str) -> None:
    with pytest.raises(sqlite3.Error, match=said):
        market.today(sql)
    assert market.today("select 1 one") == [{"one": 1}]


def test_too_many_rows() -> None:
    endless = "with recursive c(n) as (select 1 union all select n + 1 from c) select n from c"
    with pytest.raises(ValueError, match=f"More than {ROWS_MAX:,} rows"):
        market.today(endless)


class Told:
    """An attempt that is told to stop when it is looked at for the third time."""

    looks = 0

    @property
    def cancelled(self) -> bool:
        self.looks += 1
        return self.looks >= 3


def test_a_query_that_is_cancelled_stops() -> None:
    attempt: Any = Told()
    token = running.set(attempt)
    try:
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            market.today(ENDLESS)
    finally:
        running.reset(token)
    assert attempt.looks == 3
    assert market.today("select 1 one") == [{"one": 1}]  # and the next one is not


def test_ticks() -> None:
    async def gathered(*arguments: Any) -> list[dict[str, Any]]:  # noqa: ANN401
        return [tick async for tick in market.ticks(*arguments)]

    first = asyncio.run(gathered("ACME", 3))
    assert [tick["n"] for tick in first] == [0, 1, 2]
    assert all(99 < tick["price"] < 101 for tick in first)
    assert asyncio.run(gathered("ACME", 3)) == first
    with pytest.raises(ValueError, match="there are FDP, ACME"):
        asyncio.run(gathered("NONE"))
