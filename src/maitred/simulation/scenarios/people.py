"""The base of all users of a simulated node: a host, an app, and how they come and go.

Each process has an app of its own, since processes share nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maitred.app.app import App
from maitred.errors import MaitredError
from maitred.simulation.errors import Violation
from maitred.simulation.process import current_process
from maitred.simulation.scenarios.tasks_node import PORT

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient
    from maitred.simulation.hosts import Host

CLIENT: Final = (
    "connect_seconds=1&heartbeat_seconds=2&heartbeat_timeout_seconds=2&timeout_seconds=4"
    "&backoff_longest_seconds=0.5&port_blocked_seconds=2"
)


class Guest:
    """A host whose processes have apps."""

    cut_seconds: float | None = None
    """Mean time between two resets of one of its connections."""

    def __init__(self, host: Host, node: Host) -> None:
        self.host = host
        self.random = host.surroundings.random
        self._node = node

    def app_of(self, namespace: str) -> App:
        """Return a new app for a new process."""
        url = f"maitred://{self._node.address}:{PORT}?{CLIENT}"
        return App(namespace, node=url, surroundings=self.host.surroundings)

    async def connected(self, app: App) -> AsyncClient:
        """Return the app's client as soon as it has connected to a node."""
        while True:
            with suppress(MaitredError):
                return (await app.session()).client
            await asyncio.sleep(0.2)

    async def leave(self, app: App) -> None:
        """Nothing may have made no sense."""
        client = (await app.session()).client
        violations = client.statistics().violations
        await app.close()
        if violations:
            raise Violation(f"{self.host.name} met {violations} answers that made no sense.")


async def cut_now_and_then(guest: Guest) -> None:
    """Run in a process of the guest: reset its connections until it is not to be cut any more."""
    while (seconds := guest.cut_seconds) is not None:
        await asyncio.sleep(guest.random.expovariate(1 / seconds))
        transports = list(current_process().transports)
        if transports and guest.cut_seconds is not None:
            guest.random.choice(transports).abort()
