"""Keeps the gateway of a node alive, like a shard; but the node continues without it.

The gateway authenticates with a secret that is made at each start of the node, and names the users
of the queries that it brings. `MODULE` is all that this layer knows of the gateway's code.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from maitred.errors import CannotStart
from maitred.node.control import StartGateway
from maitred.node.held_ports import LOOPBACK, PORT_MAX, HeldPorts, resolve
from maitred.node.keeper import Keeper
from maitred.node.restarts import RestartPolicy
from maitred.settings import HTTP_PORT, PORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from maitred.logs import Logger
    from maitred.node.child_process import ChildProcess, ReloadAsker
    from maitred.node.shard_place import ShardPlace
    from maitred.settings import Node

MODULE: Final = "maitred.gateway.process"

ATTEMPTS: Final = 20
"""Attempts at a free port, which must be free at every address of the host."""


class GatewayKeeper(Keeper):
    """The gateway, as a sequence of processes."""

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

    async def _begin(self) -> ChildProcess:
        place = self.place
        host = LOOPBACK.get(place.host, place.host)
        node = f"[{host}]:{place.port}" if ":" in host else f"{host}:{place.port}"
        start = StartGateway(
            self._settings, self.port, node, place.gateway_secret, place.cluster_secret
        )
        return await self._launched(start, MODULE)

    @property
    def title(self) -> str:
        return self.word

    def _pointless(self, reason: str, ended: str) -> RestartPolicy:
        """Try again, slowly: tasks, and callers with a client of their own, need no gateway."""
        self._log.error("gateway keeps dying; the node continues", reason=reason, last=ended)
        restarts = self._settings.restarts
        slowly = replace(restarts, first_seconds=restarts.longest_seconds)
        return RestartPolicy(slowly, asyncio.get_running_loop().time())


def http_port(settings: Node, shards: int) -> int:
    """Return the port of the HTTP API. Without a setting it is as far from the node's port as 4780
    is from 4747, and above the ports of all shards and of drivers. It is 0, any free port, for a
    node that takes free ports itself, and where the number would be too large."""
    if settings.gateway.port is not None:
        return settings.gateway.port
    wanted = settings.port + max(HTTP_PORT - PORT, shards + 3)
    return wanted if settings.port and wanted <= PORT_MAX else 0


def hold_port(settings: Node, shards: int, held: ExitStack) -> int:
    """Reserve the port of the HTTP API, like those of shards; raise `CannotStart`."""
    gateway = settings.gateway
    wanted = http_port(settings, shards)
    reservation = held.enter_context(HeldPorts(resolve(gateway.host)))
    problem: OSError | None = None
    for _ in range(1 if wanted else ATTEMPTS):
        try:
            return reservation.hold(wanted)
        except OSError as refused:
            problem = refused
    raise cannot_listen(gateway.host, wanted, problem)


def cannot_listen(host: str, port: int, problem: OSError | None) -> CannotStart:
    """Return the error that says why the HTTP API cannot listen."""
    number = problem.errno if problem is not None else None
    where = f"Port {port} on {host}, for the HTTP API,"
    in_use = number == errno.EADDRINUSE or (number is None and "in use" in str(problem))
    if in_use and port:
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
    reason = problem.strerror or problem if problem is not None else "no reason was given"
    return CannotStart(
        f"{where} cannot be used: {reason}.",
        remedy="Name an address of this machine with --set gateway.host=127.0.0.1.",
    )
