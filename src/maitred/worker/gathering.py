"""A task of a handler that is a generator: all of its rows, as a list.

They are written down as they come, so that what is larger than a result may be is noticed before it
has filled the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from maitred.app.attempt import current
from maitred.worker.streams import Gathered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator


def gathering(
    function: Callable[..., AsyncGenerator[Any, None]], most_bytes: int
) -> Callable[..., Coroutine[Any, Any, Raw]]:
    """Return an async function that gathers all rows of an async generator."""

    async def gather(*args: Any, **named: Any) -> Raw:  # noqa: ANN401 - the handler's
        rows = Gathered(most_bytes)
        generator = function(*args, **named)
        try:
            async for row in generator:
                if rows.put(row):
                    await rows.pause()
        finally:
            await generator.aclose()
        return Raw(rows.body())

    return gather


def gathering_in_thread(
    function: Callable[..., Generator[Any, None, None]], most_bytes: int
) -> Callable[..., Raw]:
    """Return a plain function that gathers all rows of a plain generator."""

    def gather(*args: Any, **named: Any) -> Raw:  # noqa: ANN401 - the handler's
        rows = Gathered(most_bytes)
        generator = function(*args, **named)
        attempt = current()
        try:
            for row in generator:
                rows.put(row)
                if attempt.cancelled:
                    break
        finally:
            generator.close()
        return Raw(rows.body())

    return gather
