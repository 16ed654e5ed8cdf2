"""The part of a client through which other parts send requests to nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.statistics import NodeView, ShardAnswer, Unreachable
    from maitred.errors import MaitredError
    from maitred.protocol.messages import AnyAnswer, AnyRequest


class Requester(Protocol):
    """Sends requests to the nodes that own them; `AsyncClient` does."""

    async def request(
        self,
        message: AnyRequest,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
        *,
        node: str | None = None,
        patient: bool = False,
    ) -> AnyAnswer:
        """Send the request, and wait for the answer, `timeout` seconds in all."""

    def request_told(
        self,
        message: AnyRequest,
        told: Callable[[AnyAnswer | MaitredError], None],
        timeout: float | None = None,
    ) -> None:
        """Send the request, and have `told` called once, with the answer or the error."""

    def nodes(self) -> tuple[NodeView, ...]:
        """Return what is known of each node, in the order of the address."""

    def watched_nodes(self) -> tuple[str, ...]:
        """Return the nodes at which a gateway waits for the orders of operators: one member of a
        cluster, or else every node of the address."""

    def follow_routes(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever there is a newer view of the cluster; return a function that ends
        this."""


class ShardRequester(Protocol):
    """Asks all shards at once; `AsyncClient` does."""

    async def ask_shards(
        self,
        message: Callable[[str, int], AnyRequest | None],
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
    ) -> list[ShardAnswer | Unreachable]:
        """Ask every shard of every node at once, with the message that is made for the address of
        the node and the number of the shard; None: it is not asked. Return the answers, or why
        there is none, in the order of the nodes and shards."""
