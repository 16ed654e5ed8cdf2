"""Simulated machines: an address, a clock that may be wrong, and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.simulation.process import Process
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from random import Random

    from maitred.simulation.listeners import Listener, UnixListener
    from maitred.simulation.paths import Paths

EPOCH_SECONDS: Final = 1_800_000_000.0
"""Wall-clock time at virtual time 0; a fixed date, since a run must not depend on its day."""

_EPHEMERAL_FIRST: Final = 49_152
_EPHEMERAL_LAST: Final = 65_535


class Host:
    """A simulated machine, created by `World.host`; it has power except after a `crash`."""

    def __init__(self, network: Paths, name: str, address: str, group: str, random: Random) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.group = group
        self.up = True
        self.clock_skew_seconds = 0.0
        """Wall clock minus true time; set it for skew, change it during a run for a jump."""
        self.surroundings = Surroundings(
            wall_clock=self.wall_clock, random=random, secret=random.randbytes
        )
        self.processes: list[Process] = []
        self.at_end: list[Callable[[], object]] = []
        """Called when the world is over, to break cycles that the garbage collector cannot free."""
        self.listeners: dict[int, list[Listener]] = {}
        self.socket_files: dict[str, UnixListener] = {}
        """Unix sockets by path, also those of ended processes: files survive."""
        self.ports_in_use: dict[int, int] = {}
        self._next_port = _EPHEMERAL_FIRST
        self._uses: dict[int | str, int] = {}

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} {'up' if self.up else 'down'}>"

    def spawn(
        self,
        main: Coroutine[Any, Any, Any] | Callable[[], Awaitable[Any]],
        *,
        name: str | None = None,
    ) -> Process:
        """Start a process; on a host that crashed, this is also the reboot."""
        if not self.up:
            self.up = True
            self.network.path_changed()
        number = self.network.next_process_number()
        process = Process(
            number,
            name or f"{self.name}/{number}",
            host_name=self.name,
            loop=self.network.loop,
            world_context=self.network.context,
            trace=self.network.trace,
        )
        self.processes = [process for process in self.processes if not process.dead]
        self.processes.append(process)
        process.start(main)
        return process

    def crash(self) -> None:
        """Lose power: every process stops, and no peer is told."""
        self.up = False
        self.network.path_changed()
        for process in list(self.processes):
            process.lose_power()

    def pause(self) -> None:
        """Pause every process, as a virtual machine that is suspended: clocks go on, and so does
        the network, since a kernel acknowledges what its processes do not read."""
        for process in self.processes:
            process.pause()

    def resume(self) -> None:
        """Resume every process that is paused."""
        for process in self.processes:
            process.resume()

    def wall_clock(self) -> float:
        """Return the time that this host's clock shows, in unix seconds."""
        return EPOCH_SECONDS + self.network.loop.now + self.clock_skew_seconds

    def free_port(self) -> int:
        """Return a port on which no process listens, and from which none connects."""
        for _ in range(_EPHEMERAL_LAST - _EPHEMERAL_FIRST + 1):
            port = self._next_port
            self._next_port = port + 1 if port < _EPHEMERAL_LAST else _EPHEMERAL_FIRST
            if port not in self.listeners and port not in self.ports_in_use:
                return port
        raise OSError(99, "Cannot assign requested address")

    def count_use(self, end: int | str) -> int:
        """Count an attempt to connect from a port, or to a Unix socket, and return the count: each
        attempt draws its own random numbers."""
        self._uses[end] = self._uses.get(end, 0) + 1
        return self._uses[end]

    def take_port(self, port: int) -> None:
        """Count a connection that uses the port."""
        self.ports_in_use[port] = self.ports_in_use.get(port, 0) + 1

    def give_port(self, port: int) -> None:
        """Count a connection that no longer uses the port."""
        left = self.ports_in_use.get(port, 0) - 1
        if left > 0:
            self.ports_in_use[port] = left
        else:
            self.ports_in_use.pop(port, None)
