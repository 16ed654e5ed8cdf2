"""Where the processes of a cluster run: hosts of their own in a network that can be cut.

`Namespaces` gives each host a network namespace of Linux, joined by a bridge. The addresses are
loopback addresses (127.77.0.x) that are routed between the namespaces, so that nodes need no
certificates. A cut needs no firewall: the kernel of the sender is told a wrong hardware address for
the receiver, and what it sends from then on vanishes without a word, in one direction. It takes
root and iproute2.

`Loopback` gives each host an address of this machine's loopback. Nothing can be cut.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

DATABASE, USERS, FIRST_NODE = 1, 2, 11
"""The last number of the address of the database, of all clients, and of the first node."""

NOBODY = "02:00:00:00:00:99"
"""A hardware address that no interface has."""

_numbers = itertools.count()


class CannotCutError(Exception):
    """Namespaces cannot be made here; the text says why."""


@dataclass(frozen=True)
class Host:
    """A place for processes."""

    address: str
    namespace: str | None = None

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words on the host; the process keeps its id."""
        if self.namespace is None:
            return list(words)
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *words]


class Network(Protocol):
    """Hosts, and the links between them."""

    can_cut: bool

    def host(self, number: int) -> Host:
        """Return the host with this number, 1 to 250; it is made when it is first asked for."""

    def cut(self, sender: Host, receiver: Host) -> None:
        """Lose from now on what the one sends to the other; the other direction is not touched."""

    def heal(self, sender: Host, receiver: Host) -> None:
        """Undo `cut`."""

    def close(self) -> None:
        """Remove everything."""


class Loopback:
    """Addresses of this machine."""

    can_cut = False

    def host(self, number: int) -> Host:
        return Host("127.0.0.1" if number < FIRST_NODE else f"127.0.0.{number}")

    def cut(self, sender: Host, receiver: Host) -> None:
        raise CannotCutError(f"{sender} and {receiver} are addresses of one machine")

    heal = cut

    def close(self) -> None:
        pass


class Namespaces:
    """A namespace for each host, and one more with the bridge, which is the database's host."""

    can_cut = True

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise CannotCutError("network namespaces need root here")
        missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
        if missing:
            raise CannotCutError(f"there is no {' and no '.join(missing)} here")
        self._name = f"maitred-{os.getpid()}-{next(_numbers)}"
        self._hosts: dict[int, Host] = {}
        try:
            hub = self._namespace(DATABASE)
            self._ip(hub, "link", "add", "br0", "type", "bridge")
            self._ip(hub, "link", "set", "br0", "up")
            self._settle(hub, "br0")
        except CannotCutError:
            self.close()
            raise

    def host(self, number: int) -> Host:
        if number not in self._hosts:
            hub, host = self._hosts[DATABASE], self._namespace(number)
            port = f"v{number}"
            _run("ip", "link", "add", port, "netns", str(hub.namespace), "type", "veth", "peer",
                 "name", "eth0", "netns", str(host.namespace))  # fmt: skip
            self._ip(hub, "link", "set", port, "master", "br0", "up")
            self._ip(host, "link", "set", "eth0", "up")
            self._settle(host, "eth0")
        return self._hosts[number]

    def cut(self, sender: Host, receiver: Host) -> None:
        entry = ("neigh", "replace", receiver.address, "lladdr", NOBODY, "nud", "permanent")
        self._ip(sender, *entry, "dev", self._device(sender))

    def heal(self, sender: Host, receiver: Host) -> None:
        with suppress(CannotCutError):  # it was not cut
            self._ip(sender, "neigh", "del", receiver.address, "dev", self._device(sender))

    def close(self) -> None:
        for host in self._hosts.values():
            subprocess.run(
                ["ip", "netns", "del", str(host.namespace)], capture_output=True, check=False
            )
        self._hosts.clear()

    def _namespace(self, number: int) -> Host:
        host = Host(f"127.77.0.{number}", f"{self._name}-{number}")
        _run("ip", "netns", "add", str(host.namespace))
        self._hosts[number] = host
        return host

    def _settle(self, host: Host, device: str) -> None:
        """Give the host its address. Only 127.0.0.1 stays on its own loopback: the other addresses
        from 127.0.0.0/8 are routed to the bridge."""
        self._ip(host, "link", "set", "lo", "up")
        self._ip(host, "addr", "del", "127.0.0.1/8", "dev", "lo")
        self._ip(host, "addr", "add", "127.0.0.1/32", "dev", "lo")
        self._ip(host, "addr", "add", f"{host.address}/24", "dev", device)
        for where in (device, "all"):
            path = f"/proc/sys/net/ipv4/conf/{where}/route_localnet"
            _run(*host.command(["sh", "-c", f"echo 1 > {path}"]))

    def _ip(self, host: Host, *words: str) -> None:
        _run("ip", "-n", str(host.namespace), *words)

    def _device(self, host: Host) -> str:
        return "br0" if host is self._hosts[DATABASE] else "eth0"


def network() -> Network:
    """Namespaces if this user may make them; otherwise loopback addresses, and it says so."""
    try:
        return Namespaces()
    except CannotCutError as reason:
        print(f"NO LINK IS CUT HERE: {reason}.", flush=True)
        return Loopback()


def remove_leftovers() -> None:
    """Remove namespaces of runs that were killed, and end the processes in them."""
    folder = Path("/run/netns")
    for path in folder.glob("maitred-*") if folder.exists() else ():
        if Path(f"/proc/{path.name.split('-')[1]}").exists():
            continue
        inside = subprocess.run(
            ["ip", "netns", "pids", path.name], capture_output=True, text=True, check=False
        )
        for pid in inside.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCutError(f"{' '.join(words)}: {done.stderr.strip()}")
