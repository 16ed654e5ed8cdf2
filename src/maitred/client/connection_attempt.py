"""One attempt at a connection: dialling, the handshake, and the reason for a failure."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

from maitred.client.connection import Connection, spelled
from maitred.errors import MaitredError, ProtocolViolation, Unavailable, UnsupportedVersion
from maitred.protocol.description import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.client.address import HostPort
    from maitred.client.credentials import AnyCredentials, ClusterLogin
    from maitred.settings import ClientSettings


class ConnectionTerms(NamedTuple):
    """Settings that all connections of a client have in common."""

    settings: ClientSettings
    credentials: AnyCredentials | None = None
    tls: Callable[[], ssl.SSLContext] | None = None
    """Makes the context for a new connection; None without TLS."""
    versions: Sequence[int] = VERSIONS


class MemberTerms(NamedTuple):
    """Terms of connections to members of the cluster that the client's address does not name."""

    credentials: ClusterLogin | None = None
    tls: Callable[[], ssl.SSLContext] | None = None
    """Makes the context for a new connection; None without TLS."""


class Refused(Exception):
    """A failed attempt at a connection, and whether the other end answered."""

    def __init__(self, problem: MaitredError, *, reached: bool) -> None:
        super().__init__(problem)
        self.problem = problem
        self.reached = reached


async def connect(
    node: HostPort, terms: ConnectionTerms, reached: Callable[[], None], member: str = ""
) -> Connection:
    """Return a connection after its handshake; raise `Refused` if there is none.

    `reached` is called when the network has connected the two, and TLS and handshake begin.
    `member` is the id of the member of the cluster that should answer, if it is known.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(loop, terms.settings)

    def made() -> Connection:
        reached()
        return connection

    try:
        async with asyncio.timeout(terms.settings.connect_seconds):
            # Simulated loops accept no arguments for TLS.
            options: dict[str, Any] = {}
            if terms.tls is not None:
                options = {"ssl": terms.tls(), "server_hostname": node.host}
            await loop.create_connection(made, node.host, node.port, **options)
            await connection.shake_hands(terms.credentials, terms.versions, member)
    except BaseException as problem:
        nonsense = connection.decoder.broken is not None
        was_heard = connection.heard or nonsense or isinstance(problem, ssl.SSLError)
        if hasattr(connection, "transport"):
            connection.abort()
        if isinstance(problem, OSError | MaitredError):
            reason = _explained(node.name, problem, connection, terms)
            raise Refused(reason, reached=was_heard) from None
        raise
    return connection


def _explained(
    place: str, problem: OSError | MaitredError, connection: Connection, terms: ConnectionTerms
) -> MaitredError:
    if connection.last_words is not None:
        return connection.last_words
    if isinstance(connection.decoder.broken, UnsupportedVersion):
        return UnsupportedVersion(
            f"{place} does not speak this protocol.",
            remedy="Check host and port. If it is a node with TLS, write maitreds://.",
        )
    nonsense = connection.decoder.broken or problem
    if isinstance(nonsense, ProtocolViolation) and not isinstance(nonsense, UnsupportedVersion):
        return type(nonsense)(
            f"{place} does not answer as a node does: {spelled(nonsense)}.",
            remedy="Check host and port, and what listens there.",
        )
    if isinstance(problem, MaitredError):
        return problem
    if isinstance(problem, ConnectionResetError) and hasattr(connection, "transport"):
        return Unavailable(
            f"{place} closed the connection before it said anything.",
            remedy="If the node has TLS, write maitreds://."
            if terms.tls is None
            else "If it wants a certificate of its clients, give cert and key that it trusts.",
        )
    if isinstance(problem, TimeoutError) and not problem.errno:
        reason = f"no answer within {terms.settings.connect_seconds:g} s"
    else:
        reason = spelled(problem)
    remedy = None
    if isinstance(problem, ConnectionRefusedError):
        remedy = "Check host and port, and whether a node is up there: `maitred up` starts one."
    elif isinstance(problem, ssl.SSLCertVerificationError):
        remedy = "If its authority is your own, give its certificate: ?ca=FILE."
    elif isinstance(problem, ssl.SSLError):
        remedy = "If the node has no TLS, write maitred://."
    return Unavailable(f"{place} cannot be reached: {reason}.", remedy=remedy)
