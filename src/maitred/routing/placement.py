"""Two ways to spread the partitions of a batch over the hosts.

`wrap` is Temporal's rule and the default. The batch has one key; its index-th partition lives on
the index-th host that the ring gives for that key, modulo the number of hosts. Loads within a batch
differ by at most one. Its weakness: losing a host shifts every index after it, and with fewer hosts
than the batch it changes the modulus, which moves nearly every partition.

`steady` spreads as evenly and moves a fraction. Every partition has a few keys of its own, and
prefers hosts in the order of their distance from the nearest of these on the circle (multi-probe
consistent hashing). Partitions are assigned in rounds. In a round every host takes one partition,
the nearest one first: a stable matching of partitions and hosts by distance. When a host leaves,
its partitions go to further hosts, and displace only partitions at a greater distance. A queue's
root is placed before all others, so that it lives where basic routing puts it, as with `wrap`. A
batch is always placed whole, whether or not the queue has that many partitions yet, so growing
moves no partition. The price is that only full batches are even; of a batch that the queue fills in
part, as the last one may be, two partitions can share a host while another has none.

What was rejected for `steady`, measured with 8 hosts, batches of 8 / 64 and one host lost (`wrap`
moves 57 % / 84 %, `steady` 23 % / 20 %, the least possible is 12.5 %): consistent hashing with
bounded loads (44 % / 21 %, and less even after the loss), the same with one partition more a round
(33 % / 48 %), Maglev's turn-taking (26 % / 22 %), and rendezvous scores instead of distances
(23 % / 20 %, but every pair of partition and host has to be scored).
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace, merge
from typing import TYPE_CHECKING, NamedTuple, Protocol

from maitred.errors import UnknownAlgorithm
from maitred.routing.fingerprint import fingerprint32
from maitred.routing.keys import (
    check_batch_size,
    check_partition,
    check_partitions,
    own_key,
    routing_key,
)
from maitred.routing.ring import CIRCLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.routing.names import QueueId
    from maitred.routing.ring import HashRing


PROBES = 4
"""How many keys a partition has in `steady`. The nearest host of several probes is chosen more
evenly than that of one, since a long arc no longer counts for its whole length. With 1,000 hosts
their shares differ by 9.7 % (standard deviation) with 1 probe, 3.7 % with 4 and 2.7 % with 8, which
take twice as long; `wrap` with a batch of 8 gives 4.2 %."""


class Place(NamedTuple):
    """The host of a partition: the `index`-th distinct host that the ring gives for `key`."""

    key: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    node: str


class Placement(Protocol):
    """Places the `batch_size` >= 1 partitions of one batch."""

    def __call__(
        self, ring: HashRing, queue: QueueId, batch: int, batch_size: int
    ) -> list[Place]: ...


def place(
    ring: HashRing, queue: QueueId, partition: int, batch_size: int = 0, placement: str = "wrap"
) -> Place:
    """Return the place of one partition; batch size 0 is basic routing, by its own key alone."""
    check_partition(partition)
    check_batch_size(batch_size)
    place_batch = placement_named(placement)
    ring = ring.snapshot()
    if batch_size == 0:
        return _basic(ring, queue, partition)
    batch, offset = divmod(partition, batch_size)
    return place_batch(ring, queue, batch, batch_size)[offset]


def place_all(
    ring: HashRing, queue: QueueId, partitions: int, batch_size: int = 0, placement: str = "wrap"
) -> list[Place]:
    """Return the places of the first `partitions` partitions, whether or not they fill a batch."""
    check_partitions(partitions)
    check_batch_size(batch_size)
    place_batch = placement_named(placement)
    ring = ring.snapshot()
    if batch_size == 0:
        return [_basic(ring, queue, partition) for partition in range(partitions)]
    places: list[Place] = []
    for batch in range(-(-partitions // batch_size)):
        places += place_batch(ring, queue, batch, batch_size)
    return places[:partitions]


def wrap(ring: HashRing, queue: QueueId, batch: int, batch_size: int) -> list[Place]:
    """Place the batch's index-th partition on its key's index-th host, modulo the hosts."""
    key, _ = routing_key(queue, batch * batch_size, batch_size)
    hosts = ring.lookup_n(key, batch_size)
    return [Place(key, index, hosts[index % len(hosts)]) for index in range(batch_size)]


def steady(ring: HashRing, queue: QueueId, batch: int, batch_size: int) -> list[Place]:
    """Place each partition by keys of its own, in rounds, the nearest host first."""
    keys = [own_key(queue, batch * batch_size + offset) for offset in range(batch_size)]
    wishes = [_Wishes(ring, key) for key in keys]
    places: dict[int, Place] = {}
    taken: set[str] = set()
    if batch == 0:
        places[0] = Place(keys[0], 0, ring.lookup(keys[0]))
        taken.add(places[0].node)
    while len(places) < batch_size:
        _place_round(ring, wishes, places, taken)
        taken.clear()
    return [places[offset] for offset in range(batch_size)]


PLACEMENTS: dict[str, Placement] = {"wrap": wrap, "steady": steady}


def placement_named(name: str) -> Placement:
    """Return the placement of that name, or raise `UnknownAlgorithm`."""
    if name not in PLACEMENTS:
        raise UnknownAlgorithm.named("placement", name, PLACEMENTS)
    return PLACEMENTS[name]


def _basic(ring: HashRing, queue: QueueId, partition: int) -> Place:
    key = own_key(queue, partition)
    return Place(key, 0, ring.lookup(key))


def _place_round(
    ring: HashRing, wishes: list[_Wishes], places: dict[int, Place], taken: set[str]
) -> None:
    """Place partitions until every host has one more, or all partitions are placed."""
    # (distance of the wish, offset of the partition, number of the wish): offsets never repeat.
    heap = [
        (own.wish(0)[0], offset, 0) for offset, own in enumerate(wishes) if offset not in places
    ]
    heapify(heap)
    while heap and len(taken) < len(ring):
        _, offset, number = heap[0]
        _, key, host = wishes[offset].wish(number)
        if host in taken:
            further, _, _ = wishes[offset].wish(number + 1)
            heapreplace(heap, (further, offset, number + 1))
        else:
            heappop(heap)
            taken.add(host)
            places[offset] = Place(key, _rank(ring, key, host), host)


_Wish = tuple[int, str, str]
"""A host that a partition prefers: the distance, the key it is measured from, and the host."""


class _Wishes:
    """Yields all hosts by their distance from the nearest of a partition's keys, lazily."""

    __slots__ = ("_coming", "_hosts", "_known")

    def __init__(self, ring: HashRing, key: str) -> None:
        # Queue types are plain numbers, so no other partition has a key that ends in `#1`.
        keys = [key, *(f"{key}#{probe}" for probe in range(1, PROBES))]
        self._coming = merge(*[_approach(ring, probe) for probe in keys])
        self._known: list[_Wish] = []
        self._hosts: set[str] = set()

    def wish(self, number: int) -> _Wish:
        while len(self._known) <= number:
            wish = next(self._coming)
            if wish[2] not in self._hosts:
                self._hosts.add(wish[2])
                self._known.append(wish)
        return self._known[number]


def _approach(ring: HashRing, key: str) -> Iterator[_Wish]:
    """Yield the points of the ring from the key onward, by their distance from it."""
    start = fingerprint32(key)
    return (((point - start) % CIRCLE, key, host) for point, host in ring.walk(key))


def _rank(ring: HashRing, key: str, node: str) -> int:
    passed: set[str] = set()
    for _, host in ring.walk(key):
        if host == node:
            break
        passed.add(host)
    return len(passed)
