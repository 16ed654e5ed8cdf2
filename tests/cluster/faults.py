"""Faults at random: nodes are killed, frozen, drained and cut off, and come back.

Each fault ends before the next one of the same node begins, and begins while others may still
recover from theirs. The ledger has when each began and ended.
"""

from __future__ import annotations

import itertools
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.cluster.network import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.cluster.network import Host
    from tests.cluster.rig import Rig, RigNode

WEIGHTS = {
    "kill": 4,
    "kill supervisor": 2,
    "freeze": 3,
    "drain": 3,
    "cut off": 2,
    "cut from node": 3,
    "cut from database": 2,
    "cut from users": 2,
    "kill worker": 1,
}
"""How often each kind of fault is chosen."""

LONG_SHARE = 0.35
"""The share of freezes and cuts that last longer than a lease, so that the node is evicted."""
SHORT_SECONDS, LONG_SECONDS = (0.2, 3.0), (6.0, 9.0)
AWAY_SECONDS = (0.0, 2.0)
"""How long a killed or drained node stays away."""
BETWEEN_SECONDS = (0.0, 3.0)
"""The pause after the end of a fault."""


class Faults:
    """Does something to a rig, again and again."""

    def __init__(self, rig: Rig, seed: int, kinds: Sequence[str] = tuple(WEIGHTS)) -> None:
        self._rig = rig
        self._choose = random.Random(seed)
        self._kinds = [kind for kind in kinds if rig.network.can_cut or not kind.startswith("cut")]
        self._ids = itertools.count()
        self.drain_statuses: list[int] = []
        """How drained nodes ended."""
        self._ways: dict[str, Callable[[RigNode], str]] = {
            "kill": self._kill,
            "kill supervisor": self._kill_supervisor,
            "freeze": self._freeze,
            "drain": self._drain,
            "cut off": self._cut_off,
            "cut from node": self._cut_from_node,
            "cut from database": lambda node: self._cut_from(node, DATABASE),
            "cut from users": lambda node: self._cut_from(node, 0),
            "kill worker": self._kill_worker,
        }

    def strike(self, kind: str | None = None) -> str:
        """One fault, from its beginning to its end; returns what was done."""
        weights = [WEIGHTS[one] for one in self._kinds]
        chosen = kind or self._choose.choices(self._kinds, weights)[0]
        node = self._choose.choice(self._rig.nodes)
        details = self._ways[chosen](node)
        return f"{chosen}, node {node.number}{details}"

    def pause(self) -> None:
        """Between two faults."""
        time.sleep(self._choose.uniform(*BETWEEN_SECONDS))

    @contextmanager
    def _fault(
        self, kind: str, *victims: str, cut: Sequence[tuple[str, str]] = ()
    ) -> Iterator[Callable[[], None]]:
        """Note the beginning and the end of a fault. The block calls the function that it gets when
        a killed process is gone: what is lost later is not lost by the kill."""
        id_ = next(self._ids)
        book = self._rig.book
        book.note("fault", id=id_, kind=kind, victims=victims, cut=cut)
        yield lambda: book.note("struck", id=id_)
        book.note("healed", id=id_)

    def _back(self, node: RigNode) -> str:
        away = self._choose.uniform(*AWAY_SECONDS)
        time.sleep(away)
        node.start()
        return f", {away:.1f} s away"

    def _kill(self, node: RigNode) -> str:
        with self._fault("kill", node.address) as struck:
            node.kill()
            struck()
            return self._back(node)

    def _kill_supervisor(self, node: RigNode) -> str:
        with self._fault("kill supervisor", node.address) as struck:
            node.kill_supervisor()
            struck()
            return self._back(node)

    def _drain(self, node: RigNode) -> str:
        with self._fault("drain", node.address):
            status = node.drain()
            self.drain_statuses.append(status)
            return f", status {status}{self._back(node)}"

    def _freeze(self, node: RigNode) -> str:
        seconds = self._seconds()
        with self._fault("freeze", node.address):
            node.freeze()
            time.sleep(seconds)
            node.thaw()
        return f", {seconds:.1f} s"

    def _cut_off(self, node: RigNode) -> str:
        others = [other.host for other in self._rig.nodes if other is not node]
        hosts = [*others, self._rig.network.host(DATABASE), self._rig.users]
        return self._cut("cut off", node, hosts, "everything")

    def _cut_from_node(self, node: RigNode) -> str:
        other = self._choose.choice([one for one in self._rig.nodes if one is not node])
        return self._cut("cut from node", node, [other.host], f"node {other.number}")

    def _cut_from(self, node: RigNode, number: int) -> str:
        if number:
            host = self._rig.network.host(number)
            return self._cut("cut from database", node, [host], "the database")
        return self._cut("cut from users", node, [self._rig.users], "users")

    def _cut(self, kind: str, node: RigNode, hosts: list[Host], of: str) -> str:
        names = self._names()
        cut = [(node.address, names[host.address]) for host in hosts]
        seconds = self._seconds()
        ways = self._choose.choice(("both ways", "outgoing", "incoming"))
        links = [(node.host, host) for host in hosts if ways != "incoming"]
        links += [(host, node.host) for host in hosts if ways != "outgoing"]
        with self._fault(kind, node.address, cut=cut):
            for sender, receiver in links:
                self._rig.network.cut(sender, receiver)
            time.sleep(seconds)
            for sender, receiver in links:
                self._rig.network.heal(sender, receiver)
        return f", from {of}, {ways}, {seconds:.1f} s"

    def _names(self) -> dict[str, str]:
        """What the ledger calls each host, by its address."""
        rig = self._rig
        names = {node.host.address: node.address for node in rig.nodes}
        return {**names, rig.network.host(DATABASE).address: "database", rig.users.address: "users"}

    def _kill_worker(self, _: RigNode) -> str:
        worker = self._choose.choice(self._rig.workers)
        with self._fault("kill worker", str(worker.pid)) as struck:
            worker.kill()
            struck()
            self._rig.workers.remove(worker)
        self._rig.start_worker(wait=False)
        return f", worker {worker.pid}"

    def _seconds(self) -> float:
        is_long = self._choose.random() < LONG_SHARE
        return self._choose.uniform(*(LONG_SECONDS if is_long else SHORT_SECONDS))
