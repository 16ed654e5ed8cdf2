"""The part of a client that asks queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from maitred.client.query_calls import (
    Stream,
    asked,
    read_any_rows,
    read_anything,
    read_whole,
    written,
)
from maitred.client.query_gateway import QueryGateway
from maitred.client.router import closed
from maitred.client.timeouts import checked_timeout
from maitred.errors import InvalidArgument
from maitred.settings import Querying as QueryingSettings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from maitred.client.asked_query import AskedQuery
    from maitred.client.client import AsyncClient
    from maitred.client.router import Router
    from maitred.surroundings import Surroundings


class Asks:
    """What `AsyncClient` inherits."""

    user: str
    """Who this is to the node, as far as the address says."""
    _loop: asyncio.AbstractEventLoop
    _router: Router
    _surroundings: Surroundings
    _querying: QueryGateway | None

    @property
    def querying(self) -> QueryGateway:
        """What asks this client's queries: its own gateway, made when it is first needed."""
        if self._querying is None:
            if self._router.closed:
                raise closed()
            self._querying = QueryGateway(
                cast("AsyncClient", self), QueryingSettings(), self._surroundings
            )
        return self._querying

    def ask_with(self, querying: QueryGateway) -> None:
        """Have queries asked by this one, which has settings of its own; before the first query."""
        if self._querying is not None:
            raise InvalidArgument("This client asks queries already.")
        self._querying = querying

    async def query(
        self,
        queue: str,
        *args: Any,  # noqa: ANN401 - the handler says which
        named: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the query
        namespace: str | None = None,
        priority: int = 2,
        idempotent: bool = False,
        do_not_queue: bool = False,
    ) -> Any:  # noqa: ANN401 - what the handler returns
        """Have a free worker of the queue run this, and return what it returns.

        The queue may be `namespace/queue`; the namespace is `default` otherwise. `idempotent`: it
        may be run again elsewhere if its worker is lost. `do_not_queue`: a worker now, or
        `Overloaded`. Cancelling stops the handler, too.
        """
        payload = written(args, named)
        running = self._begin(
            queue, payload, timeout, namespace, priority, idempotent, do_not_queue, rows=False
        )
        return read_whole(await running.answer(), read_anything)

    def stream(
        self,
        queue: str,
        *args: Any,  # noqa: ANN401 - the handler says which
        named: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        namespace: str | None = None,
        priority: int = 2,
        idempotent: bool = False,
        do_not_queue: bool = False,
    ) -> Stream[Any]:
        """The same for a handler that is a generator: its rows, as they come."""
        payload = written(args, named)

        async def begin() -> AskedQuery:
            return self._begin(
                queue, payload, timeout, namespace, priority, idempotent, do_not_queue, rows=True
            )

        return Stream(begin, read_any_rows, read_anything)

    def _begin(
        self,
        queue: str,
        payload: bytes,
        timeout: float | None,
        namespace: str | None,
        priority: int,
        idempotent: bool,
        do_not_queue: bool,
        *,
        rows: bool,
    ) -> AskedQuery:
        querying = self._querying or self.querying
        seconds = querying.settings.timeout_seconds if timeout is None else checked_timeout(timeout)
        ask = asked(
            queue,
            payload,
            self._loop.time() + seconds,
            namespace=namespace,
            priority=priority,
            idempotent=idempotent,
            do_not_queue=do_not_queue,
            rows=rows,
            user=self.user,
        )
        return querying.begin(ask)
