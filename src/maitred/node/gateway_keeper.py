"""Keeps the gateway of a node alive, like a shard; but the node does not stop because of it.

The gateway is the node's own: it knows a secret that is made at each start of the node, and with it
says whose queries it brings. What runs in its process is none of the node's business: `MODULE` is
all that is known of it here.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from maitred.errors import CannotStart
from maitred.node.control import StartGateway
from maitred.node.held_ports import HeldPorts, resolve
from maitred.node.keeper import Keeper
from maitred.node.launch import ShardProcess
from maitred.node.restarts import RestartPolicy
from maitred.settings import HTTP_PORT, PORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from maitred.logs import Logger
    from maitred.node.launch import ReloadAsker
    from maitred.node.shard import ShardPlace
    from maitred.settings import Node

MODULE: Final = "maitred.gateway.process"

PORT_MAX: Final = 65_535

ATTEMPTS: Final = 20
"""At a free port, where a host has several addresses and each must have it."""

EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to find oneself, then


class GatewayKeeper(Keeper):
    """The gateway, whichever process it is at the moment."""

    word = "gateway"

    def __init__(
        self,
        place: ShardPlace,
        settings: Node,
        log: Logger,
        port: int,
        reload_wanted: Callable[[ReloadAsker], None] = lambda _asker: None,
    ) -> None:
        super().__init__(
            place,
            settings,
            log,
            source_port_socket=None,
            inherited=(),
            reload_wanted=reload_wanted,
        )
        self._log = log
        self.port = port

    @property
    def _name(self) -> str:
        return "The gateway"

    @property
    def _port(self) -> int:
        return self.port

    async def _begin(self) -> ShardProcess:
        place = self.place
        host = EVERYWHERE.get(place.host, place.host)
        node = f"[{host}]:{place.port}" if ":" in host else f"{host}:{place.port}"
        start = StartGateway(self._settings, self.port, node, place.gateway_secret)
        return await ShardProcess.launch(start, self._inherited, MODULE, self._reload_wanted)

    @property
    def title(self) -> str:
        return self.word

    def _pointless(self, reason: str, ended: str) -> RestartPolicy:
        """Tasks and those who ask without it need no gateway: it is tried again, slowly."""
        self._log.error("gateway keeps dying; the node goes on", reason=reason, last=ended)
        restarts = self._settings.restarts
        slowly = replace(restarts, first_seconds=restarts.longest_seconds)
        return RestartPolicy(slowly, asyncio.get_running_loop().time())


def http_port(settings: Node, shards: int) -> int:
    """The port of the HTTP API unless the settings say one: as far from the node's port as 4780 is
    from 4747, and behind the ports of all shards and of drivers. 0, a free one, beside a node that
    takes free ports itself, and where there is no such number."""
    if settings.gateway.port is not None:
        return settings.gateway.port
    wanted = settings.port + max(HTTP_PORT - PORT, shards + 2)
    return wanted if settings.port and wanted <= PORT_MAX else 0


def hold_port(settings: Node, shards: int, held: ExitStack) -> int:
    """The port of the HTTP API, held like those of shards; raises `CannotStart`."""
    gateway = settings.gateway
    wanted = http_port(settings, shards)
    reservation = held.enter_context(HeldPorts(resolve(gateway.host)))
    problem: OSError | None = None
    for _ in range(1 if wanted else ATTEMPTS):
        try:
            return reservation.hold(wanted)
        except OSError as refused:
            problem = refused
    raise _refused(gateway.host, wanted, problem)


def _refused(host: str, port: int, problem: OSError | None) -> CannotStart:
    number = problem.errno if problem is not None else None
    where = f"Port {port} on {host}, for the HTTP API,"
    if number == errno.EADDRINUSE and port:
        return CannotStart(
            f"{where} is in use.",
            remedy="Stop the process that has it, or name another: --set gateway.port=0 finds a "
            "free one, --set gateway.enabled=false does without.",
        )
    if number == errno.EACCES:
        return CannotStart(
            f"{where} is not for this user.",
            remedy="Name another one with --set gateway.port=...; those below 1024 are for root.",
        )
    reason = problem.strerror if problem is not None else "no reason was given"
    return CannotStart(
        f"{where} cannot be used: {reason}.",
        remedy="Name an address of this machine with --set gateway.host=127.0.0.1.",
    )
