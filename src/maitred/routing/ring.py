"""The consistent-hash ring, bit for bit as ringpop builds it.

Every host has `replica_points` places on a circle of 2**32: the fingerprints of its address
followed by 0, 1, 2, ... A key belongs to the first host at or after its own fingerprint. Two hosts
can share a place by chance, or because `a:1` + `11` spells the same as `a:11` + `1`; then the order
of their addresses decides, so that all processes that know the same hosts build the same ring.

The places lie in a flat array of 32-bit numbers, and an index tells where each sector of the circle
starts in it: a lookup is one hash and a few steps from there. Its cost at 100,000 points is the
processor's cache misses, and there are few. A change merges the host's points into copies and swaps
everything at once: a reader in another thread sees the old ring or the new one, never half of each.
What was rejected: a tree (ringpop's choice; an object a point, and slower in Python),
a list of places (every comparison fetches an object), and bisection (each of its steps costs more
than the two that are needed on average).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, chain
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from maitred.errors import DuplicateHost, InvalidArgument, InvalidName, NoHosts, UnknownHost
from maitred.routing.fingerprint import fingerprint32
from maitred.routing.names import check_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REPLICA_POINTS = 100
"""The points per host, ringpop's default: the fullest of many hosts holds about a third more than
the mean."""

REPLICA_POINTS_MAX = 10_000
"""The most points per host: with more, a ring of 1,000 hosts takes gigabytes and is no better
balanced."""

CIRCLE = 2**32


POINTS_A_SECTOR = 4
"""How many points a sector of the index should have, with room to be half or twice as many: the
index costs a byte a point and saves all but two steps of a lookup."""


class _Circle(NamedTuple):
    """The points in order; a circle is never changed, only replaced."""

    places: array[int]
    """The places of the points, then the last place of the circle, where every search stops."""
    owners: list[str]
    """The hosts of the points, then the first host again, for keys behind the last point."""
    starts: array[int]
    """The position of the first point of each sector."""
    hosts: frozenset[str]
    shift: int
    """The sector of a place is the place shifted right by this many bits."""

    @classmethod
    def of(
        cls,
        places: array[int],
        owners: list[str],
        hosts: frozenset[str],
        starts: array[int] | None = None,
        shift: int = 0,
    ) -> _Circle:
        """Build a circle from points without sentinels; rebuild the index if it does not fit."""
        sectors = CIRCLE >> shift
        if starts is None or not sectors <= len(places) <= 4 * POINTS_A_SECTOR * sectors:
            sectors = 1 << (len(places) // POINTS_A_SECTOR).bit_length()
            shift = 32 - sectors.bit_length() + 1
            starts = array("I", [bisect_left(places, at << shift) for at in range(sectors)])
        places.append(CIRCLE - 1)
        owners.extend(owners[:1])
        return cls(places, owners, starts, hosts, shift)

    def position(self, key: str | bytes) -> int:
        """Return the position of the first point at or after the key's fingerprint."""
        try:
            place = fingerprint32(key)
        except UnicodeEncodeError:
            raise _not_unicode(key) from None
        position = self.starts[place >> self.shift]
        while self.places[position] < place:
            position += 1
        return position

    def positions_from(self, start: int) -> Iterator[int]:
        """Return every position once around from `start`, without the sentinel."""
        return chain(range(start, len(self.places) - 1), range(start))

    def changed(self, host: str, points: list[int], *, joins: bool) -> _Circle:
        """Return a circle with the host's points added, or removed."""
        places, owners, _, hosts, shift = self
        size = len(places) - 1
        new_places: array[int] = array("I")
        new_owners: list[str] = []
        done = 0
        for place in points:
            position = bisect_left(places, place, done, size)
            if joins:
                while position < size and places[position] == place and owners[position] < host:
                    position += 1
            else:  # here, or just behind points of other hosts at the same place
                position = owners.index(host, position)
            new_places += places[done:position]
            new_owners += owners[done:position]
            if joins:
                new_places.append(place)
                new_owners.append(host)
            done = position if joins else position + 1
        new_places += places[done:size]
        new_owners += owners[done:size]
        starts = self._shifted(points, 1 if joins else -1)
        return _Circle.of(new_places, new_owners, hosts ^ {host}, starts, shift)

    def _shifted(self, points: list[int], by: int) -> array[int]:
        """Return the index after one point was added, or removed, at each of the places."""
        shifts = [0] * (len(self.starts) + 1)
        for place in points:
            shifts[(place >> self.shift) + 1] += by
        return array("I", map(add, self.starts, accumulate(shifts)))


class HashRing:
    """Hosts on a circle; keys belong to the host that follows them."""

    __slots__ = ("_circle", "replica_points")

    def __init__(self, hosts: Iterable[str] = (), *, replica_points: int = REPLICA_POINTS) -> None:
        if type(replica_points) is not int or not 1 <= replica_points <= REPLICA_POINTS_MAX:
            raise InvalidArgument(
                f"A host needs from 1 to {REPLICA_POINTS_MAX} points on the ring, "
                f"not {replica_points!r}."
            )
        self.replica_points = replica_points
        # A place and the rank of its host make one integer that sorts by (hash, address). Points of
        # one host at one place need no order among themselves: all of them belong to that host.
        ranked = sorted(_distinct(hosts))
        count = len(ranked)
        points = sorted(
            [
                place * count + rank
                for rank, host in enumerate(ranked)
                for place in self._places_of(host)
            ]
        )
        places = array("I", [point // count for point in points])
        owners = [ranked[point % count] for point in points]
        self._circle = _Circle.of(places, owners, frozenset(ranked))

    def add(self, *hosts: str) -> None:
        """Add hosts, all at once; add none if one of them is in the ring already."""
        circle = self._circle
        for host in _distinct(hosts):
            if host in circle.hosts:
                raise DuplicateHost(f"The host {host!r} is in the ring already.")
            circle = circle.changed(host, sorted(self._places_of(host)), joins=True)
        self._circle = circle

    def remove(self, *hosts: str) -> None:
        """Remove hosts, all at once; remove none if one of them is not in the ring."""
        circle = self._circle
        for host in _distinct(hosts):
            if host not in circle.hosts:
                raise UnknownHost(f"The host {host!r} is not in the ring.")
            circle = circle.changed(host, sorted(self._places_of(host)), joins=False)
        self._circle = circle

    def snapshot(self) -> HashRing:
        """Return the ring as it is now, for a caller that needs several consistent lookups."""
        same = object.__new__(HashRing)
        same.replica_points = self.replica_points
        same._circle = self._circle
        return same

    def lookup(self, key: str | bytes) -> str:
        """Return the host that owns the key; raise `NoHosts` for an empty ring."""
        # `_Circle.position`, without the calls.
        places, owners, starts, _, shift = self._circle
        try:
            place = fingerprint32(key)
            position = starts[place >> shift]
            while places[position] < place:
                position += 1
            return owners[position]
        except UnicodeEncodeError:
            raise _not_unicode(key) from None
        except IndexError:
            raise _no_hosts() from None

    def lookup_n(self, key: str | bytes, count: int) -> list[str]:
        """Return the first `count` distinct hosts from the key onward, or all if that is fewer."""
        if count < 0:
            raise InvalidArgument(f"Cannot look up {count} hosts.")
        circle = self._circle
        owners = circle.owners
        if not owners:
            raise _no_hosts()
        start = circle.position(key)
        # Mostly the next few points are enough, and then there is no loop in Python.
        found = dict.fromkeys(owners[start : start + 2 * count])
        if len(found) < count:
            count = min(count, len(circle.hosts))
            for position in circle.positions_from(start):
                found[owners[position]] = None
                if len(found) == count:
                    break
        return list(found)[:count]

    def walk(self, key: str | bytes) -> Iterator[tuple[int, str]]:
        """Yield the place and the owner of every point once around, from the key onward."""
        circle = self._circle
        places, owners, _, _, _ = circle
        if not owners:
            raise _no_hosts()
        positions = circle.positions_from(circle.position(key))
        return ((places[position], owners[position]) for position in positions)

    def places(self) -> list[tuple[int, str]]:
        """Return the place and the owner of every point, in the order of the places."""
        places, owners, _, _, _ = self._circle
        return list(zip(places[:-1], owners, strict=False))

    def checksum(self) -> int:
        """Return a checksum that is equal for equal rings, in whatever order their hosts joined.

        With the default number of points it is ringpop's own checksum. Rings with another number
        place keys elsewhere, so the number is included, where ringpop would call them equal.
        """
        words = ";".join(sorted(self._circle.hosts))
        if self.replica_points != REPLICA_POINTS:
            # No host has an empty name, so two semicolons in a row can't separate hosts.
            words += f";;points={self.replica_points}"
        return fingerprint32(words)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(self._circle.hosts))

    def __len__(self) -> int:
        return len(self._circle.hosts)

    def __contains__(self, host: object) -> bool:
        return host in self._circle.hosts

    def __repr__(self) -> str:
        return (
            f"<HashRing of {len(self._circle.hosts)} hosts x {self.replica_points} points, "
            f"checksum {self.checksum()}>"
        )

    def _places_of(self, host: str) -> list[int]:
        return [fingerprint32(f"{host}{i}") for i in range(self.replica_points)]


def _distinct(hosts: Iterable[str]) -> list[str]:
    if isinstance(hosts, str):
        raise InvalidArgument(
            f"Expected a list of hosts, not the text {hosts!r}.", remedy="Put it in a list."
        )
    seen: dict[str, None] = {}
    for host in hosts:
        check_host(host)
        if host in seen:
            raise DuplicateHost(f"The host {host!r} is named twice.")
        seen[host] = None
    return list(seen)


def _no_hosts() -> NoHosts:
    return NoHosts("The ring has no hosts, so no key has an owner.", remedy="Add a host first.")


def _not_unicode(key: str | bytes) -> InvalidName:
    return InvalidName(f"The key {key!r} is not valid Unicode.")
