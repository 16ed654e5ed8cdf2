"""The methods of real event loops that the simulated one refuses, with a reason.

A refusal by name is better than asyncio's bare NotImplementedError: it tells the user that the code
under test does something that a simulation cannot make repeatable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NoReturn

from maitred.simulation.errors import NotSimulated

if TYPE_CHECKING:
    from collections.abc import Callable

_REFUSED: Final = {
    "there are no file descriptors": (
        "add_reader add_writer remove_reader remove_writer sock_accept sock_connect sock_recv"
        " sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendto sock_sendfile"
        " sendfile connect_accepted_socket connect_read_pipe connect_write_pipe"
    ),
    "there are no subprocesses; use host.spawn": "subprocess_exec subprocess_shell",
    "there are no signals; use process.kill": "add_signal_handler remove_signal_handler",
    "only streams are simulated": "create_datagram_endpoint",
    "TLS is not simulated": "start_tls",
    "functions run inline, without threads": "set_default_executor",
}


class Refusals(asyncio.BaseEventLoop):
    """A loop whose refused methods say why."""


def _refusal(name: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(self: Refusals, *args: Any, **options: Any) -> NoReturn:  # noqa: ANN401, ARG001
        raise NotSimulated(f"The simulated loop has no {name}: {reason}.")

    refuse.__name__ = name
    refuse.__doc__ = f"Refused: {reason}."
    return refuse


for _reason, _names in _REFUSED.items():
    for _name in _names.split():
        setattr(Refusals, _name, _refusal(_name, _reason))


def refuse_unsimulated(
    ssl: object,
    sock: object,
    server_hostname: str | None,
    ssl_handshake_timeout: float | None,
    ssl_shutdown_timeout: float | None,
) -> None:
    """Raise for options of connecting and listening that are not simulated."""
    if ssl:
        raise NotSimulated("TLS is not simulated.", remedy="Leave ssl out.")
    if sock is not None:
        raise NotSimulated(
            "There are no sockets here.", remedy="Pass host and port, or the path of a Unix socket."
        )
    if server_hostname is not None:
        raise ValueError("server_hostname is only meaningful with ssl")
    if ssl_handshake_timeout is not None or ssl_shutdown_timeout is not None:
        raise ValueError("timeouts for ssl are only meaningful with ssl")
