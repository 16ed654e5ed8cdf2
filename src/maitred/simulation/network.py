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
from maitred.simulation.paths import Paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from maitred.simulation.faults import Faults
    from maitred.simulation.loop import SimulatedLoop
    from maitred.simulation.process import Process
    from maitred.simulation.trace import Trace

    HostGroup = Host | str | Iterable[Host | str]
    """A host, a group's name, a host's name, or several of them."""

_FIRST_ADDRESS: Final = int(ipaddress.IPv4Address("10.0.0.1"))
_HOSTS_MAX: Final = 2**24 - 2


class Network(Paths):
    """The hosts of a `World`, and the paths and connections between them."""

    def __init__(
        self, loop: SimulatedLoop, trace: Trace, faults: Faults, random: Callable[[str], Random]
    ) -> None:
        super().__init__(loop, trace, faults, random)
        self.hosts: dict[str, Host] = {}
        self._addresses: dict[str, Host] = {}

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
        self._ends.append(host)
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

    def host_of(self, process: Process) -> Host:
        """Return the host that the process runs on."""
        return self.hosts[process.host_name]

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
