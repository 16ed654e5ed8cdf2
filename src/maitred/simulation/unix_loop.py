"""The simulated loop with Unix stream sockets: how the processes of one host talk.

A path is a file of one host, and no other host sees it. Directories, permissions and a process's
own `os.unlink` are not simulated: every directory is there, and only binding and closing touch a
socket's file.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from maitred.simulation.connection import connected
from maitred.simulation.loop import SimulatedLoop
from maitred.simulation.process import current_process
from maitred.simulation.refusals import refuse_unsimulated
from maitred.simulation.unix_connection import UnixAttempt
from maitred.simulation.unix_listener import UnixListener, checked_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class UnixLoop(SimulatedLoop):
    """`create_unix_connection` and `create_unix_server`, as asyncio's callers know them."""

    async def create_unix_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: Path | None = None,
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
        attempt = UnixAttempt(current_process(), checked_path(path))
        connection = await connected(attempt.future)
        return await connection.claim(protocol_factory, attempt.names)

    async def create_unix_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: Path | None = None,
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
        listener: Any = UnixListener(
            current_process(), checked_path(path), cleanup_socket=cleanup_socket
        )
        listener.bind()
        server = asyncio.Server(self, [listener], protocol_factory, None, backlog, None, None)
        if start_serving:
            await server.start_serving()
        return server
