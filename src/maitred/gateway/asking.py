"""What doors need of whoever asks queries: `client.querying`
has it, and so have fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.protocol.queries import QueryFilter, QueryRow
    from maitred.queries.ask import Ask


class Rows(Protocol):
    """A stream that has begun."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class Running(Protocol):
    """A query that was begun."""

    @property
    def sequence(self) -> int: ...
    async def answer(self) -> Any: ...  # noqa: ANN401 - a whole result, which has a body, or rows
    def cancel(self) -> None: ...


class Table(Protocol):
    """The query table."""

    under_way: int
    counts: dict[str, int]

    def rows(self, wanted: QueryFilter | None = None) -> list[QueryRow]: ...


class Asking(Protocol):
    """Begins queries."""

    @property
    def table(self) -> Table: ...
    def begin(self, ask: Ask) -> Running: ...
    def cancel(self, sequence: int) -> bool: ...
    async def close(self) -> None: ...
