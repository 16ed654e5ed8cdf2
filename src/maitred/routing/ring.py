"""The consistent-hash ring, bit for bit as ringpop builds it.

Every host stands at `replica_points` places of a circle of 2**32: the fingerprints of its address
followed by 0, 1, 2, ... A key belongs to the first host at or after its own fingerprint. Two hosts
can share a place by chance, or because `a:1` + `11` spells the same as `a:11` + `1`; then the order
of their addresses decides, so that everybody who knows the same hosts builds the same ring.

The points lie in short sorted lists, so that a lookup is one hash and one bisection in C. A change
works on copies of the lists it touches and swaps all of them at once: whoever reads from another
thread sees the old ring or the new one, never half of each. What was rejected: a tree (ringpop's
choice; an object a point, and slower in Python), and one long list (a change copies all of it).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

from maitred.errors import DuplicateHost, InvalidArgument, InvalidName, NoHosts, UnknownHost
from maitred.routing.fingerprint import fingerprint32
from maitred.routing.names import check_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REPLICA_POINTS = 100
"""ringpop's default: the fullest of many hosts holds about a third more than the mean."""

REPLICA_POINTS_MAX = 10_000
"""Past this a ring of 1,000 hosts costs gigabytes and is no better balanced."""

CIRCLE = 2**32


SECTOR_BITS = 22
"""The circle is cut into 1,024 sectors of 2**22 places each. With 1,000 hosts a sector holds about
100 points: a lookup compares 7 numbers close together instead of 17 all over the memory, and a
host that joins copies the sectors it touches instead of 100,000 points."""

_SECTORS = CIRCLE >> SECTOR_BITS

_Sector = tuple[list[int], list[str]]
"""The places of a sector in order, and their owners; one owner more than places, the first of the
sectors that follow, who owns what lies behind the last place."""


class HashRing:
    """Hosts on a circle; keys belong to the host that follows them."""

    __slots__ = ("_hosts", "_sectors", "replica_points")

    def __init__(self, hosts: Iterable[str] = (), *, replica_points: int = REPLICA_POINTS) -> None:
        if not 1 <= replica_points <= REPLICA_POINTS_MAX:
            raise InvalidArgument(
                f"A host needs from 1 to {REPLICA_POINTS_MAX} points on the ring, "
                f"not {replica_points}."
            )
        self.replica_points = replica_points
        self._hosts: set[str] = set()
        self._sectors: list[_Sector] = []
        self._build(_distinct(hosts))

    def add(self, *hosts: str) -> None:
        """Let hosts join; none joins if one of them is here already."""
        for host in _distinct(hosts):
            if host in self._hosts:
                raise DuplicateHost(f"The host {host!r} is in the ring already.")
        changed: dict[int, _Sector] = {}
        for host in hosts:
            for place in self._places_of(host):
                places, owners = self._copied(changed, place >> SECTOR_BITS)
                position = bisect_left(places, place)
                while places[position : position + 1] == [place] and owners[position] < host:
                    position += 1
                places.insert(position, place)
                owners.insert(position, host)
        self._replace(self._hosts.union(hosts), changed)

    def remove(self, *hosts: str) -> None:
        """Let hosts leave; none leaves if one of them is not here."""
        for host in _distinct(hosts):
            if host not in self._hosts:
                raise UnknownHost(f"The host {host!r} is not in the ring.")
        changed: dict[int, _Sector] = {}
        for host in hosts:
            for place in self._places_of(host):
                places, owners = self._copied(changed, place >> SECTOR_BITS)
                position = owners.index(host, bisect_left(places, place))
                del places[position], owners[position]
        self._replace(self._hosts.difference(hosts), changed)

    def lookup(self, key: str | bytes) -> str:
        """The host that owns the key."""
        try:
            place = fingerprint32(key)
        except UnicodeEncodeError:
            raise _not_unicode(key) from None
        places, owners = self._sectors[place >> SECTOR_BITS]
        return owners[bisect_left(places, place)] or _no_hosts()

    def lookup_n(self, key: str | bytes, count: int) -> list[str]:
        """The first `count` distinct hosts from the key onward; all of them if there are fewer."""
        if count < 0:
            raise InvalidArgument(f"Cannot look up {count} hosts.")
        if not self._hosts:
            _no_hosts()
        try:
            place = fingerprint32(key)
        except UnicodeEncodeError:
            raise _not_unicode(key) from None
        places, owners = self._sectors[place >> SECTOR_BITS]
        position = bisect_left(places, place)
        # Mostly the next few points are enough, and then none of this loops in Python.
        found = dict.fromkeys(owners[position : position + 2 * count])
        if len(found) < count:
            found = self._first_distinct(key, count)
        return list(found)[:count]

    def walk(self, key: str | bytes) -> Iterator[tuple[int, str]]:
        """Every point once around, from the key onward: its place and its owner."""
        sectors = self._sectors
        try:
            start = fingerprint32(key)
        except UnicodeEncodeError:
            raise _not_unicode(key) from None
        first = start >> SECTOR_BITS
        places, owners = sectors[first]
        position = bisect_left(places, start)
        for index in range(position, len(places)):
            yield places[index], owners[index]
        for sector in chain(range(first + 1, _SECTORS), range(first)):
            yield from zip(*sectors[sector], strict=False)
        yield from zip(places[:position], owners, strict=False)

    def checksum(self) -> int:
        """Equal for equal rings, in whatever order their hosts came.

        With the default number of points it is ringpop's own checksum. Rings with another number
        place keys elsewhere, so the number goes in too, where ringpop would call them equal.
        """
        words = sorted(self._hosts)
        if self.replica_points != REPLICA_POINTS:
            words.append(f"points={self.replica_points}")
        return fingerprint32(";".join(words))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(self._hosts))

    def __len__(self) -> int:
        return len(self._hosts)

    def __contains__(self, host: object) -> bool:
        return host in self._hosts

    def __repr__(self) -> str:
        return (
            f"<HashRing of {len(self._hosts)} hosts x {self.replica_points} points, "
            f"checksum {self.checksum()}>"
        )

    def _first_distinct(self, key: str | bytes, count: int) -> dict[str, None]:
        count = min(count, len(self._hosts))
        found: dict[str, None] = {}
        for _, host in self.walk(key):
            found[host] = None
            if len(found) == count:
                break
        return found

    def _places_of(self, host: str) -> list[int]:
        return [fingerprint32(f"{host}{i}") for i in range(self.replica_points)]

    def _build(self, hosts: list[str]) -> None:
        # A place and the rank of its host make one integer that sorts by (hash, address). Points of
        # one host at one place need no order among themselves: all of them mean that host.
        ranked = sorted(hosts)
        count = len(ranked)
        points = sorted(
            [
                place * count + rank
                for rank, host in enumerate(ranked)
                for place in self._places_of(host)
            ]
        )
        changed: dict[int, _Sector] = {}
        for point in points:
            place, rank = divmod(point, count)
            places, owners = changed.setdefault(place >> SECTOR_BITS, ([], []))
            places.append(place)
            owners.append(ranked[rank])
        for _, owners in changed.values():
            owners.append("")
        self._sectors = [([], [""])] * _SECTORS
        self._replace(set(hosts), changed)

    def _copied(self, changed: dict[int, _Sector], sector: int) -> _Sector:
        if sector not in changed:
            places, owners = self._sectors[sector]
            changed[sector] = (places.copy(), owners.copy())
        return changed[sector]

    def _replace(self, hosts: set[str], changed: dict[int, _Sector]) -> None:
        sectors = self._sectors.copy()
        for sector, points in changed.items():
            sectors[sector] = points
        following = next((owners[0] for places, owners in sectors if places), "")
        for sector in reversed(range(_SECTORS)):
            places, owners = sectors[sector]
            if owners[-1] != following:
                sectors[sector] = (places, [*owners[:-1], following])
            if places:
                following = owners[0]
        self._hosts = hosts
        self._sectors = sectors


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


def _no_hosts() -> NoReturn:
    raise NoHosts("The ring has no hosts, so no key has an owner.", remedy="Add a host first.")


def _not_unicode(key: str | bytes) -> InvalidName:
    return InvalidName(f"The key {key!r} is not valid Unicode.")
