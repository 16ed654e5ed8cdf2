"""TLS for a listener, with failed handshakes logged.

An event loop that is given a TLS context for a listener drops a connection whose handshake fails
without a word: the protocol never hears of it. So the listener here is a plain one. Each connection
that it accepts is taken from the loop and given back to it as an accepted socket with TLS, which is
an operation that fails visibly. That also means that the context is looked up for every connection:
a replaced context applies from then on.

The listener does not count a connection whose handshake is under way, but it has a descriptor and
some memory. So handshakes have a limit as well. At the limit the oldest one is dropped: peers that
connect and send nothing cannot keep out a peer whose handshake proceeds, which needs two exchanges.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING, Final, cast

from maitred.errors import ConnectionLost, TlsFailed, TooManyConnections
from maitred.wire.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.wire.complaints import ComplaintLog

TOLD_SECONDS: Final = 10.0
"""Seconds between two log lines about failed handshakes of one kind; the later one tells how many
there were."""


class TlsHandshakes:
    """The TLS handshakes of one listener."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        seconds: float,
        log: ComplaintLog,
        count: Callable[[], None],
        *,
        most: int,
    ) -> None:
        """A handshake that takes longer than `seconds` fails; at most `most` are under way at a
        time. `count` is called for each one that fails."""
        self._context = context
        self._seconds = seconds
        self._complaints = Complaints(asyncio.get_running_loop(), log, TOLD_SECONDS)
        self._count = count
        self._most = most
        self._under_way: dict[asyncio.Task[None], str] = {}
        """Address of the peer of each handshake, by its asyncio task, the oldest first."""

    def __len__(self) -> int:
        return len(self._under_way)

    def before(self, factory: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return a factory for the listener that does the TLS handshake before it uses the given
        factory."""
        return lambda: _Arrival(self, factory)

    def close(self) -> None:
        """Drop the connections whose handshakes are under way."""
        for task in list(self._under_way):
            task.cancel()

    def begin(self, arrived: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        """Start the TLS handshake of an accepted connection; its protocol gets the connection
        afterwards."""
        try:
            host, port, *_ = arrived.getpeername()
        except OSError as problem:  # the peer has already disconnected
            arrived.close()
            self.failed("?", problem)
            return
        if len(self._under_way) >= self._most:
            self._give_way()
        peer = f"{host}:{port}"
        task = asyncio.get_running_loop().create_task(self._shake_hands(arrived, peer, factory))
        self._under_way[task] = peer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)

    def _give_way(self) -> None:
        """Drop the oldest handshake."""
        task = next(iter(self._under_way))
        peer = self._under_way.pop(task)
        task.cancel()
        self._count()
        problem = TooManyConnections(
            f"{self._most:,} TLS handshakes are under way, as many as allowed.",
            remedy="Look for peers that connect and send nothing, or allow more connections.",
        )
        self._complaints.say("a TLS handshake gave way to a new one", peer, problem)

    async def _shake_hands(
        self, arrived: socket.socket, peer: str, factory: Callable[[], asyncio.Protocol]
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                factory, arrived, ssl=self._context(), ssl_handshake_timeout=self._seconds
            )
        except OSError as problem:
            self.failed(peer, problem)

    def failed(self, peer: str, problem: OSError) -> None:
        """Count and log a failed handshake."""
        self._count()
        if isinstance(problem, ConnectionResetError):
            # Not a warning: port scanners and clients that change their mind do this. But some
            # clients that do not trust the certificate say no more, either.
            left = ConnectionLost(
                "The peer closed the connection before the TLS handshake was over."
            )
            self._complaints.say("a peer left during its TLS handshake", peer, left, "info")
        else:
            failed = TlsFailed(f"The TLS handshake failed: {_reason(problem)}.")
            self._complaints.say("a TLS handshake failed", peer, failed)


class _Arrival(asyncio.Protocol):
    """Takes a connection from the event loop before anything is read from it."""

    def __init__(self, handshakes: TlsHandshakes, factory: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by isinstance: uvloop's transports do not inherit from asyncio's.
        plain = cast("asyncio.Transport", transport)
        try:
            # A second descriptor of the same connection, which closing the first one does not end.
            arrived = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        except OSError as problem:  # no descriptor is left
            self._handshakes.failed("?", problem)
        else:
            self._handshakes.begin(arrived, self._factory)
        plain.abort()


def _reason(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or str(problem)).replace("_", " ").lower()
    return (str(problem) or type(problem).__name__).rstrip(".")
