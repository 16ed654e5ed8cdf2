"""Handlers that tell one secret, a hidden argument, in every way that they have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator  # noqa: TC003 - handlers' annotations are read
from typing import Any

from maitred import App

app = App("vault")
log = logging.getLogger(__name__)

HIDE = {"hide": ["card"], "retries": 1, "backoff": 0.01, "retention": 600}


def tell(card: str, order: str) -> None:
    log.warning("card %s of %s", card, order, extra={"card": card})
    try:
        int(card)
    except ValueError as problem:
        failure = LookupError(f"order {order} of {card!r}")
        failure.add_note(f"the card was {card}")
        raise failure from problem


@app.handler("payments", **HIDE)  # type: ignore[arg-type]
async def pay(order: str, card: str) -> None:
    tell(card, order)


@app.handler("receipts", **HIDE)  # type: ignore[arg-type]
def receipt(order: str, card: str) -> dict[str, Any]:
    log.info("in a thread: %s", card)
    return {"order": order, "card": card}


@app.handler("gates", **HIDE)  # type: ignore[arg-type]
async def gate(order: str, card: str) -> None:
    log.info("%s waits with %s", order, card)
    await asyncio.Event().wait()


@app.handler("quotes", hide=["card"])
async def quote(order: str, card: str) -> str:
    if order.startswith("bad"):
        tell(card, order)
    return f"{order} for {card}"


@app.handler("rows", hide=["card"])
async def rows(order: str, card: str) -> AsyncIterator[str]:
    yield order
    tell(card, order)
