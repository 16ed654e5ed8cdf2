"""The interface through which listeners run queries; `client.query_gateway` and fakes
implement it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.asked_query import Rows, Whole
    from maitred.dispatch.ask import Ask
    from maitred.errors import MaitredError
    from maitred.protocol.queries import QueryFilter, QueryRow


class QueryInProgress(Protocol):
    """A query in progress."""

    @property
    def sequence(self) -> int: ...
    @property
    def worker(self) -> str: ...
    def then(self, told: Callable[[Whole | Rows | MaitredError], None]) -> None: ...
    def cancel(self) -> None: ...


class Table(Protocol):
    """The query table of a gateway."""

    @property
    def under_way(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]: ...

    def rows(self, wanted: QueryFilter | None = None) -> list[QueryRow]: ...


class QueryRunner(Protocol):
    """Begins and cancels queries."""

    @property
    def table(self) -> Table: ...
    def begin(self, ask: Ask) -> QueryInProgress: ...
    def cancel(self, sequence: int) -> bool: ...
    async def close(self) -> None: ...
