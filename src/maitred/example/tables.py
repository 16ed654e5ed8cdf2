"""Quotes and trades in SQLite, in memory, with a read-only copy for each thread."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from maitred.app.attempt import current

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SYMBOLS: Final = ("FDP", "ACME", "BOLT", "CRUX")
ROWS_PER_DAY: Final = 390
"""The rows of each symbol but the first on one day: one a minute, from 9:30 to 16:00."""

ROWS_MAX: Final = 100_000
"""The most rows of one result, which is in memory as a whole; more should be a stream."""

VALUE_BYTES: Final = 2**20
"""The largest text or blob: a query must not be able to fill the memory by itself."""

LOOK_STEPS: Final = 10_000
"""The steps of SQLite's machine between two checks for cancellation: about 0.1 ms."""

_READING: Final = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class Tables:
    """Holds the tables `quote` and `trade` of some days, filled from a fixed random seed."""

    def __init__(self, days: Sequence[str]) -> None:
        self._days = days
        self._own = threading.local()
        self._making = threading.Lock()
        self._first: sqlite3.Connection | None = None

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """Run a query and return its rows; raise SQLite's error, also if the query is cancelled."""
        connection = self._connection()
        attempt = current()
        connection.set_progress_handler(lambda: attempt.cancelled, LOOK_STEPS)
        try:
            with closing(connection.execute(sql)) as cursor:
                names = [column[0] for column in cursor.description or ()]
                rows = cursor.fetchmany(ROWS_MAX)
                if cursor.fetchone() is not None:
                    raise ValueError(f"More than {ROWS_MAX:,} rows; ask for fewer with `limit`.")
        finally:
            connection.set_progress_handler(None, 0)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's copy of the tables."""
        found: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = sqlite3.connect(":memory:")
            with self._making:
                if self._first is None:
                    self._first = self._filled()
                self._first.backup(found)
            found.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
            found.set_authorizer(_only_reading)
            self._own.connection = found
        return found

    def _filled(self) -> sqlite3.Connection:
        made = sqlite3.connect(":memory:", check_same_thread=False)
        made.execute("create table quote (date text, sym text, time text, bid real, ask real)")
        made.execute(
            "create table trade (date text, sym text, time text, price real, size integer)"
        )
        for day in self._days:
            made.executemany("insert into quote values (?, ?, ?, ?, ?)", _quotes(day))
            made.executemany("insert into trade values (?, ?, ?, ?, ?)", _trades(day))
        made.commit()
        return made


def _only_reading(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _quotes(day: str) -> Iterator[tuple[object, ...]]:
    """Yield quotes: the ten rows of the paper for the first symbol, random walks for the others."""
    for number in range(10):
        yield day, SYMBOLS[0], _time(30 * number), _price(10_000 + number), _price(10_100 + number)
    for symbol, minute, cents, chance in _walks(day, "quote"):
        spread = chance.randint(1, 5)
        yield day, symbol, _time(minute), _price(cents), _price(cents + spread)


def _trades(day: str) -> Iterator[tuple[object, ...]]:
    for number in range(10):
        yield day, SYMBOLS[0], _time(30 * number), _price(10_000 + number), 100
    for symbol, minute, cents, chance in _walks(day, "trade"):
        yield day, symbol, _time(minute), _price(cents), 100 * chance.randint(1, 9)


def _walks(day: str, table: str) -> Iterator[tuple[str, int, int, random.Random]]:
    for number, symbol in enumerate(SYMBOLS[1:], 1):
        chance = random.Random(f"{day} {symbol} {table}")
        cents = 5_000 * number
        for minute in range(ROWS_PER_DAY):
            cents = max(100, cents + chance.randint(-7, 7))
            yield symbol, minute, cents, chance


def _price(cents: int) -> float:
    return cents / 100


def _time(minute: int) -> str:
    """Return the time of day this many minutes after the opening at 9:30."""
    hours, minutes = divmod(9 * 60 + 30 + minute, 60)
    return f"{hours:02}:{minutes:02}:00"
