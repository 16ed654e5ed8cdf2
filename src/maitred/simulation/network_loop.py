"""The simulated loop with a network: `create_connection`, `create_server`, name resolution.

These take whatever asyncio callers pass. What has no meaning here but does no harm (flags, happy
eyeballs, backlog) is accepted; what would change the outcome (TLS, a socket of one's own, IPv6)
is refused.

Unix sockets connect processes of one host. A path is a file of that host. Directories, permissions
and a process's own `os.unlink` are not simulated: every directory exists, and only binding and
closing touch a socket's file.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from typing import TYPE_CHECKING, Any

from maitred.simulation.attempts import TcpAttempt, UnixAttempt
from maitred.simulation.listeners import (
    ANY_ADDRESS,
    LOOPBACK,
    Listener,
    UnixListener,
    bind_error,
    checked_path,
)
from maitred.simulation.loop import SimulatedLoop
from maitred.simulation.process import PROCESS, current_process
from maitred.simulation.refusals import refuse_unsimulated

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from maitred.simulation.hosts import Host
    from maitred.simulation.listeners import BoundSocket
    from maitred.simulation.network import Network
    from maitred.simulation.process import ExceptionHandler, Process

    SocketPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_PORT_MAX = 65_535


class NetworkLoop(SimulatedLoop):
    """The loop of a `World`, which sets `network`."""

    network: Network

    async def getaddrinfo(  # type: ignore[override]
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002, ARG002 - the names are asyncio's
        proto: int = 0,  # noqa: ARG002
        flags: int = 0,
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Return the one IPv4 address of a name, as seen from the host of the running process."""
        return [_address_info(self._resolve(host, family, flags), _port(port))]

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:  # noqa: ANN401, ARG002
        """Return the name of the host with that address, or the address itself."""
        host = self.network.at(sockaddr[0], self.network.host_of(current_process()))
        return (host.name if host else sockaddr[0]), str(sockaddr[1])

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | str | None = None,
        *,
        ssl: object = None,
        family: int = 0,
        proto: int = 0,  # noqa: ARG002 - only TCP is simulated
        flags: int = 0,
        sock: object = None,
        local_addr: tuple[str, int] | None = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        happy_eyeballs_delay: float | None = None,  # noqa: ARG002 - there is one address to race
        interleave: int | None = None,  # noqa: ARG002
        all_errors: bool = False,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect from the host of the running process."""
        refuse_unsimulated(ssl, sock, server_hostname, ssl_handshake_timeout, ssl_shutdown_timeout)
        if host is None and port is None:
            raise ValueError("host and port was not specified and no sock specified")
        process = current_process()
        address = self._resolve(host, family, flags)
        if address == ANY_ADDRESS:
            address = LOOPBACK
        local_port = self._local_port(self.network.host_of(process), local_addr)
        attempt = TcpAttempt(
            self.network, process, address=address, port=_port(port), local_port=local_port
        )
        try:
            connection = await attempt.connected()
        except OSError as error:
            if all_errors:
                raise ExceptionGroup("create_connection failed", [error]) from None
            raise
        return await connection.claim(protocol_factory, attempt.names)

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | str | None = None,
        *,
        family: int = socket.AF_UNSPEC,
        flags: int = socket.AI_PASSIVE,
        sock: object = None,
        backlog: int = 100,
        ssl: object = None,
        reuse_address: bool | None = None,  # noqa: ARG002 - nothing lingers in TIME_WAIT here
        reuse_port: bool | None = None,
        keep_alive: bool | None = None,  # noqa: ARG002 - an idle silent peer stays unnoticed
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        start_serving: bool = True,
    ) -> asyncio.Server:
        """Bind on the host of the running process. The server is asyncio's own.

        With `reuse_port`, several processes of a host (or one of them, several times) share a port;
        `choose_listener` picks the listener of each connection.
        """
        refuse_unsimulated(ssl, sock, None, ssl_handshake_timeout, ssl_shutdown_timeout)
        if host is None and port is None:
            raise ValueError("Neither host/port nor sock were specified")
        process = current_process()
        names: Sequence[str | None] = (
            [host or None] if host is None or isinstance(host, str) else host
        )
        addresses = dict.fromkeys(self._resolve(name, family, flags) for name in names)
        listeners: list[Any] = []
        try:
            for address in addresses:
                listener = self._bound(process, address, _port(port), reuse_port=bool(reuse_port))
                listeners.append(listener)
        except OSError:
            for listener in listeners:
                listener.close()
            raise
        return await self._serving(listeners, protocol_factory, backlog, starts=start_serving)

    async def create_unix_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: SocketPath | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect within the host of the running process."""
        refuse_unsimulated(ssl, sock, server_hostname, ssl_handshake_timeout, ssl_shutdown_timeout)
        if path is None:
            raise ValueError("no path and sock were specified")
        attempt = UnixAttempt(self.network, current_process(), checked_path(path))
        connection = await attempt.connected()
        return await connection.claim(protocol_factory, attempt.names)

    async def create_unix_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: SocketPath | None = None,
        *,
        sock: object = None,
        backlog: int = 100,
        ssl: object = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        start_serving: bool = True,
        cleanup_socket: bool = sys.version_info >= (3, 13),
    ) -> asyncio.Server:
        """Bind on the host of the running process. The server is asyncio's own.

        Closing the server removes the file if `cleanup_socket` says so; as with asyncio and uvloop,
        it does by default since Python 3.13. A kill leaves the file behind, and a crash too.
        """
        refuse_unsimulated(ssl, sock, None, ssl_handshake_timeout, ssl_shutdown_timeout)
        if path is None:
            raise ValueError("path was not specified, and no sock specified")
        process = current_process()
        files = self.network.host_of(process).socket_files
        listener = UnixListener(process, files, checked_path(path), cleanup_socket=cleanup_socket)
        listener.bind()
        return await self._serving([listener], protocol_factory, backlog, starts=start_serving)

    async def _serving(
        self,
        listeners: list[Any],
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        *,
        starts: bool,
    ) -> asyncio.Server:
        server = asyncio.Server(self, listeners, protocol_factory, None, backlog, None, None)
        if starts:
            await server.start_serving()
        return server

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        """Set the handler of the running process alone; outside of processes, the world's."""
        process = PROCESS.get()
        if process is None:
            super().set_exception_handler(handler)
        else:
            process.exception_handler = handler

    # Called by asyncio's Server

    def _start_serving(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: BoundSocket,
        sslcontext: object = None,  # noqa: ARG002
        server: Any = None,  # noqa: ANN401
        *_: object,
        **__: object,
    ) -> None:
        sock.serve(protocol_factory, server)

    def _stop_serving(self, sock: BoundSocket) -> None:
        sock.stop()

    def _resolve(self, host: str | bytes | None, family: int, flags: int) -> str:
        if family not in (socket.AF_UNSPEC, socket.AF_INET):
            raise socket.gaierror(socket.EAI_FAMILY, "only IPv4 is simulated")
        if host is None or host in ("", b""):
            return ANY_ADDRESS if flags & socket.AI_PASSIVE else LOOPBACK
        name = host.decode() if isinstance(host, bytes) else host
        return self.network.resolve(name)

    def _local_port(self, host: Host, local_addr: tuple[str, int] | None) -> int:
        if local_addr is None:
            return host.free_port()
        address = self._resolve(local_addr[0], 0, 0)
        if address not in (ANY_ADDRESS, LOOPBACK, host.address):
            raise bind_error(errno.EADDRNOTAVAIL, address, local_addr[1])
        port = _port(local_addr[1]) or host.free_port()
        if port in host.listeners or port in host.ports_in_use:
            raise bind_error(errno.EADDRINUSE, address, port)
        return port

    def _bound(self, process: Process, address: str, port: int, *, reuse_port: bool) -> Listener:
        host = self.network.host_of(process)
        if address not in (ANY_ADDRESS, LOOPBACK, host.address):
            raise bind_error(errno.EADDRNOTAVAIL, address, port)
        port = port or host.free_port()
        listener = Listener(
            process, host.listeners, address=address, port=port, reuse_port=reuse_port
        )
        listener.bind()
        return listener


def _address_info(address: str, port: int) -> tuple[int, int, int, str, tuple[str, int]]:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))


def _port(port: str | bytes | int | None) -> int:
    number = int(port or 0)
    if not 0 <= number <= _PORT_MAX:
        raise OverflowError("port must be 0-65535.")
    return number
