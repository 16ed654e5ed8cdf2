"""TLS for a listener, with failed handshakes told.

A loop that is given a TLS context for a listener drops a connection whose handshake fails and says
nothing: the protocol never hears of it. So the listener here is a plain one. Each connection that
it accepts is taken from the loop and given back to it as an accepted socket with TLS, which is an
operation that fails visibly. That also means that the context is looked up for every connection:
one that is replaced counts from then on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING, cast

from maitred.errors import TlsFailed

if TYPE_CHECKING:
    from collections.abc import Callable


class TlsHandshakes:
    """Those of one listener."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        seconds: float,
        failed: Callable[[str, TlsFailed], None],
    ) -> None:
        """A handshake that takes longer than so many `seconds` fails. `failed` is told the peer and
        the reason."""
        self._context = context
        self._seconds = seconds
        self._failed = failed
        self._under_way: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def before(self, factory: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return what makes the protocols of the listener: TLS first, then those of the factory."""
        return lambda: _Arrival(self, factory)

    def close(self) -> None:
        """Drop the connections whose handshakes are under way."""
        for task in list(self._under_way):
            task.cancel()

    def begin(self, arrived: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        """Shake hands on a connection that was accepted, and hand it over to its protocol."""
        task = asyncio.get_running_loop().create_task(self._shake_hands(arrived, factory))
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)

    async def _shake_hands(
        self, arrived: socket.socket, factory: Callable[[], asyncio.Protocol]
    ) -> None:
        peer = "?"
        try:
            host, port, *_ = arrived.getpeername()
            peer = f"{host}:{port}"
            await asyncio.get_running_loop().connect_accepted_socket(
                factory, arrived, ssl=self._context(), ssl_handshake_timeout=self._seconds
            )
        except OSError as problem:
            self.failed(peer, problem)

    def failed(self, peer: str, problem: OSError) -> None:
        """Tell why there will be no connection."""
        self._failed(peer, TlsFailed(f"The TLS handshake failed: {_reason(problem)}."))


class _Arrival(asyncio.Protocol):
    """Takes a connection from the loop before anything was read from it."""

    def __init__(self, handshakes: TlsHandshakes, factory: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by isinstance: uvloop's transports are none of asyncio's classes.
        plain = cast("asyncio.Transport", transport)
        try:
            # A second descriptor of the same connection: to close the first one ends nothing.
            arrived = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        except OSError as problem:  # there are no more of them
            self._handshakes.failed("?", problem)
        else:
            self._handshakes.begin(arrived, self._factory)
        plain.abort()


def _reason(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or str(problem)).replace("_", " ").lower()
    if isinstance(problem, ConnectionResetError):
        return "the peer closed the connection"
    return (str(problem) or type(problem).__name__).rstrip(".")
