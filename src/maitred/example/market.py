"""The services of the kdb+ paper, for `make run`: quotes and trades of one day, and of twenty.

The queries are SQL. They can only read, their errors reach their callers, and a query whose caller
has left is really stopped: SQLite calls back every few thousand steps to learn whether to go on. A
handler of your own looks much like these.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator  # noqa: TC003 - a handler's annotations are read
from typing import Any

from maitred.app.app import App
from maitred.example.tables import SYMBOLS, Tables

app = App("default")

TODAY = "2016-02-16"
"""The day of the paper's session; it is fixed, so that every run has the same rows."""

HISTORY_DAYS = 20

_today = Tables([TODAY])
_history = Tables([f"2016-01-{day:02}" for day in range(1, HISTORY_DAYS + 1)])


@app.handler("EQUITY_MARKET_RDB")
def today(sql: str) -> list[dict[str, Any]]:
    """Run SQL on today's tables `quote` and `trade`."""
    return _today.ask(sql)


@app.handler("EQUITY_MARKET_HDB")
def history(sql: str) -> list[dict[str, Any]]:
    """Run SQL on the same tables of the days before."""
    return _history.ask(sql)


@app.handler("EQUITY_MARKET_TICKS")
async def ticks(symbol: str, count: int = 10, pause: float = 0.0) -> AsyncIterator[dict[str, Any]]:
    """Stream `count` trades, `pause` seconds apart; the slot stays taken until the last one."""
    if symbol not in SYMBOLS:
        raise ValueError(f"There is no symbol {symbol!r}; there are {', '.join(SYMBOLS)}.")
    chance = random.Random(symbol)
    price = 100.0
    for number in range(count):
        price = max(1.0, price + chance.choice((-0.01, 0.0, 0.01)))
        yield {
            "n": number,
            "sym": symbol,
            "price": round(price, 2),
            "size": chance.choice((100, 200)),
        }
        await asyncio.sleep(pause)
