"""The connection that a client's request came over, as the admission of requests sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.security.permissions import Permissions
    from maitred.security.source import Source


class RequestOrigin(Protocol):
    """Says who sent a request, and from where."""

    announced: tuple[str, str] | None
    """The address that a worker announced last on this connection, and the address that gateways
    are told instead."""

    @property
    def user(self) -> str:
        """The name of the user at the other end; empty on a node without users."""

    @property
    def is_gateway(self) -> bool:
        """Whether the node's own gateway is at the other end."""

    @property
    def permissions(self) -> Permissions:
        """What the user may do."""

    @property
    def peer_host(self) -> str:
        """The IP address that the connection comes from; empty if it is closed."""

    @property
    def origin(self) -> str:
        """The user and the address, for the history of tasks, as in `alice@10.0.0.7`."""

    @property
    def source(self) -> Source:
        """The address that the connection comes from."""

    def record_refusal(self, opcode: int, problem: MaitredError) -> None:
        """Record in the audit log that its user is not permitted to make a request, or to see all
        of its answer."""
