"""The gateway as the admin API uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient
    from maitred.errors import MaitredError
    from maitred.gateway.query_interface import QueryRunner
    from maitred.protocol.tasks import PartitionDescription
    from maitred.security.guard import Guard


class RequestingGateway(Protocol):
    """Sends requests to the node, and knows the queries of this gateway."""

    guard: Guard
    """Says whether the gateway has users."""

    def requester(self) -> AsyncClient:
        """Return the client of the node; raise `Unavailable` while there is no node."""

    def ask(self) -> QueryRunner:
        """Return the object that runs queries; raise `Unavailable` while there is no node."""

    async def describe(
        self, namespace: str, queue: str
    ) -> list[PartitionDescription | MaitredError]:
        """Describe every partition of a queue, or why one cannot be reached; raise the error of the
        root."""
