"""Futures that stand for somebody else's answer, which may come when nobody waits any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from maitred.errors import MaitredError

if TYPE_CHECKING:
    import asyncio

_Answer = TypeVar("_Answer")


def settle(future: asyncio.Future[_Answer], outcome: _Answer | MaitredError) -> None:
    """Give the future its answer, or the error instead of one; of no effect if it has either.

    An error counts as seen. Whoever was to wait for it may have met another one before, or have
    been cancelled in this very turn of the loop: that is no fault that the loop should report.
    """
    if future.done():
        return
    if isinstance(outcome, MaitredError):
        future.set_exception(outcome)
        future.exception()
    else:
        future.set_result(outcome)
