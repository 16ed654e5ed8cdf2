"""Hosts, the paths between them, and the connections on those paths."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final

from maitred.errors import DuplicateHost, InvalidArgument, UnknownHost
from maitred.simulation.hosts import Host
from maitred.simulation.listeners import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from maitred.simulation.connection import SimulatedConnection
    from maitred.simulation.faults import Faults
    from maitred.simulation.loop import SimulatedLoop
    from maitred.simulation.trace import Trace
    from maitred.simulation.transport import SimulatedTransport

    HostGroup = Host | str | Iterable[Host | str]
    """A host, a group's name, a host's name, or several of them."""

_FIRST_ADDRESS: Final = int(ipaddress.IPv4Address("10.0.0.1"))
_HOSTS_MAX: Final = 2**24 - 2


class Network:
    """The hosts of a `World`, and the paths and connections between them."""

    def __init__(
        self, loop: SimulatedLoop, trace: Trace, faults: Faults, random: Callable[[str], Random]
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.troubled = False
        """Whether some path is blocked; while none is, flows skip the check of their path."""
        self.faults = faults
        self.random = random
        self.context = loop.bare_context
        """The context of the network's own events, which run in no process: no kill stops them."""
        self.hosts: dict[str, Host] = {}
        self.connections: dict[int, SimulatedConnection] = {}
        self.zombies: list[SimulatedTransport] = []
        self._addresses: dict[str, Host] = {}
        self._partitions: dict[tuple[str, str], None] = {}
        self._connection_number = 0
        self._process_number = 0

    @property
    def faults(self) -> Faults:
        """The faults of segments that are sent from now on; may be replaced at any time."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        # What every segment needs, at hand.
        self.window_bytes = faults.window_bytes
        self.split_probability = faults.split_probability
        self.delay_min_seconds = faults.delay_min_seconds
        self.delay_range_seconds = faults.delay_max_seconds - faults.delay_min_seconds
        self.trouble_probability = (
            faults.spike_probability + faults.cut_probability + faults.half_open_probability
        )

    def add_host(self, name: str, group: str) -> Host:
        """Create a host with the next free address."""
        if name in self.hosts:
            raise DuplicateHost(f"There is a host called {name!r} already.")
        if not name or name == "localhost" or _is_address(name):
            raise InvalidArgument(f"{name!r} cannot name a host.")
        if len(self.hosts) >= _HOSTS_MAX:
            raise InvalidArgument(f"A world holds at most {_HOSTS_MAX:,} hosts.")
        address = str(ipaddress.IPv4Address(_FIRST_ADDRESS + len(self.hosts)))
        host = Host(self, name, address, group, self.random(f"host/{name}"))
        self.hosts[name] = self._addresses[address] = host
        return host

    def resolve(self, name: str) -> str:
        """Return the address of a name; raise `socket.gaierror` if it is unknown."""
        if name == "localhost":
            return LOOPBACK
        if _is_address(name):
            return name
        host = self.hosts.get(name)
        if host is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return host.address

    def at(self, address: str, local: Host) -> Host | None:
        """Return the host that the address means on host `local`; None if no host has it."""
        return local if address == LOOPBACK else self._addresses.get(address)

    # Paths

    def partition(self, group_a: HostGroup, group_b: HostGroup) -> None:
        """Let nothing pass between two groups, in either direction, until `heal`."""
        self._close_paths(group_a, group_b)
        self._close_paths(group_b, group_a)
        self.path_changed()

    def block(self, source: HostGroup, target: HostGroup) -> None:
        """Let nothing pass in one direction only, until `heal`."""
        self._close_paths(source, target)
        self.path_changed()

    def heal(self) -> None:
        """Open all paths; what was held is sent again."""
        self._partitions.clear()
        self.path_changed()

    def blocked(self, source: Host, target: Host) -> bool:
        """Whether nothing sent now would arrive."""
        if not target.up or not source.up:
            return True
        return bool(self._partitions) and (source.name, target.name) in self._partitions

    def path_changed(self) -> None:
        """Tell all flows that a path has opened or closed."""
        self.troubled = bool(self._partitions) or not all(host.up for host in self.hosts.values())
        for connection in list(self.connections.values()):
            connection.outgoing.resume()
            connection.incoming.resume()

    # Connections

    def next_connection_number(self) -> int:
        """Return the number of the next connection, which identifies it in the trace."""
        self._connection_number += 1
        return self._connection_number

    def next_process_number(self) -> int:
        """Return the number of the next process, which identifies it in the trace."""
        self._process_number += 1
        return self._process_number

    def forget_if_over(self, number: int) -> None:
        """Drop a connection when both ends are closed and nothing is under way."""
        connection = self.connections.get(number)
        if connection is not None and connection.over:
            del self.connections[number]
            connection.forgotten()

    def leaves_orderly(self, transport: SimulatedTransport) -> bool:
        """Whether the peer of a killed process sees an end of stream instead of a reset."""
        probability = self.faults.kill_orderly_probability
        return probability > 0.0 and transport.outgoing.random.random() < probability

    def discard(self) -> None:
        """Discard all transports, because the world is over."""
        for connection in self.connections.values():
            for flow in (connection.outgoing, connection.incoming):
                if flow.sender is not None:
                    flow.sender.discard()
        for transport in self.zombies:
            transport.discard()
        for host in self.hosts.values():
            for process in host.processes:
                for transport in process.transports:
                    transport.discard()
            for free in host.at_end:
                free()

    def _close_paths(self, sources: HostGroup, targets: HostGroup) -> None:
        for source, target in product(self._names(sources), self._names(targets)):
            if source != target:
                self._partitions[source, target] = None

    def _names(self, group: HostGroup) -> list[str]:
        if isinstance(group, Host):
            return [group.name]
        if not isinstance(group, str):
            return [name for part in group for name in self._names(part)]
        names = [host.name for host in self.hosts.values() if host.group == group]
        if not names and group in self.hosts:
            names = [group]
        if not names:
            raise UnknownHost(f"There is no host and no group of hosts called {group!r}.")
        return names


@lru_cache  # each connection asks, and there are few names
def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True
