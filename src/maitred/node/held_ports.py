"""Reserves the node's ports, whatever happens to the shards that listen on them.

Shards share a port by SO_REUSEPORT, and with that option a second node of the same user could bind
the port as well and silently take half of the connections. The supervisor therefore binds a port
*without* the option first, which fails if another process has the port, and then sets the option on
that same socket: from now on shards can bind, and no other process could bind in between.
SO_REUSEADDR, which allows a bind while old connections linger, is unset for the same reason: two
sockets that have it may share a port until one of them listens.

The socket is open while the node runs, and never listens, so the kernel gives it no connections.
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from maitred.errors import CannotStart

if TYPE_CHECKING:
    from types import TracebackType

ATTEMPTS: Final = 100
"""Attempts at a block of free ports, each from another random port."""

QUIET: Final = range(10_000, 32_000)
"""The ports that are tried first: systems assign higher ports to outgoing connections (Linux from
32,768 on), and a busy machine with thousands of those may have no free block there."""

PORT_MAX: Final = 65_535

LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - never bound here
"""The addresses at which this machine reaches a listener on all of its addresses."""


class Endpoint(NamedTuple):
    """An address without its port, as the socket functions want it."""

    family: socket.AddressFamily
    host: str
    scope: tuple[int, ...] = ()
    """Flow and scope of IPv6."""

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        return (self.host, port, *self.scope)  # type: ignore[return-value]


def resolve(host: str) -> list[Endpoint]:
    """Return every address that the host stands for; raise `CannotStart` if there is none."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise CannotStart(
            f"The host {host!r} has no address: {reason}.",
            remedy="Use an address of this machine, such as 127.0.0.1.",
        ) from None
    endpoints = [
        Endpoint(family, str(address[0]), tuple(map(int, address[2:])))
        for family, _, _, _, address in found
    ]
    return list(dict.fromkeys(endpoints))


def stream_socket(family: socket.AddressFamily) -> socket.socket:
    """A socket as the loops make theirs: one for IPv6 takes nothing of IPv4."""
    made = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


class HeldPorts:
    """The ports of a node. A context manager: they are given back at its end."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self._endpoints = endpoints
        self._ports: set[int] = set()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    def hold(self, port: int) -> int:
        """Hold this port (0: any) at every address, and say which; raises `OSError`."""
        if port in self._ports:
            return port
        with ExitStack() as begun:
            for endpoint in self._endpoints:
                held = begun.enter_context(stream_socket(endpoint.family))
                _bind_alone(held, endpoint, port)
                port = held.getsockname()[1]
            self._held.push(begun.pop_all())
        self._ports.add(port)
        return port

    def block(self, port: int, shards: int, spare: int = 0) -> int:
        """Hold a node's shared port and one above it for each shard; returns the shared one.

        If `port` is 0, the block is any free one, with `spare` more free ports above it.
        """
        return self._this_block(port, shards) if port else self._any_block(shards, spare)

    def _this_block(self, port: int, shards: int) -> int:
        for one in range(port, port + 1 + shards):
            try:
                self.hold(one)
            except OSError as problem:
                raise self._refused(one, port, shards, problem) from None
        return port

    def _any_block(self, shards: int, spare: int) -> int:
        problem: OSError | None = None
        for attempt in range(ATTEMPTS):
            try:
                port = self.hold(random.choice(QUIET) if attempt < ATTEMPTS // 2 else 0)
                if port + shards + spare <= PORT_MAX:
                    for one in range(port + 1, port + 1 + shards + spare):
                        self.hold(one)
                    return port
            except OSError as taken:
                problem = taken
                if taken.errno not in {errno.EADDRINUSE, errno.EACCES}:
                    break
            self._give_back()
        raise self._refused(0, 0, shards, problem)

    def _give_back(self) -> None:
        self._ports.clear()
        self._held.close()

    def _refused(self, taken: int, port: int, shards: int, problem: OSError | None) -> CannotStart:
        hosts = " and ".join(endpoint.host for endpoint in self._endpoints)
        number = problem.errno if problem else None
        if number == errno.EADDRNOTAVAIL:
            single = len(self._endpoints) == 1
            return CannotStart(
                f"{hosts} is no address of this machine."
                if single
                else f"Not all of {hosts} are addresses of this machine.",
                remedy="Name one that it has with --host, such as 127.0.0.1.",
            )
        if not port:
            return CannotStart(
                f"There are no {shards + 1} free ports in a row on {hosts}.",
                remedy="Name a port with --port, or use fewer shards.",
            )
        if number == errno.EACCES:
            return CannotStart(
                f"This user may not listen on port {taken}.",
                remedy="Name another one with --port; those below 1024 are for root.",
            )
        if number != errno.EADDRINUSE and problem is not None:
            return CannotStart(f"Port {taken} on {hosts} cannot be used: {problem.strerror}.")
        owner = f"which is shard {taken - port - 1}'s" if taken > port else "which all shards share"
        return CannotStart(
            f"Port {taken} on {hosts}, {owner}, is in use.",
            remedy="Stop the process that has it, or name another one with --port "
            f"(the node needs {shards + 1} in a row; --port 0 finds some).",
        )


def _bind_alone(held: socket.socket, endpoint: Endpoint, port: int) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(endpoint.at(port))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
