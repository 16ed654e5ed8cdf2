"""The owners of partitions, as small numbers: this node's shards, and those of other members.

A shard has to know for each request whether it owns the partition, and if not, which link leads to
the owner. Both are answered by an *owner number*: 0 to n - 1 are the n shards of this node, in
their order. The shards of other members get the following numbers as they come up. A number is
never used again for another shard, so that it can be kept while the view changes.

Without a cluster the owner follows from the number of shards alone (`routing/homes.py`). In a
cluster it follows from the view (`membership/homes.py`), and changes with it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from maitred.errors import MaitredError, NotOwner, Unavailable
from maitred.membership.homes import REMEMBERED_MAX, ClusterHomes
from maitred.protocol import cql
from maitred.protocol.cluster import encode_view
from maitred.protocol.messages import HomeHint, with_home
from maitred.routing.fingerprint import fingerprint32

if TYPE_CHECKING:
    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.node.shard_place import ShardPlace
    from maitred.routing.homes import Homes, PartitionAddress


class Owner(NamedTuple):
    """One shard of one member."""

    member: str
    """The member's id; empty without a cluster."""
    shard: int


class Owners:
    """Finds the owner of a partition by the view that the shard has adopted."""

    def __init__(self, place: ShardPlace, homes: Homes) -> None:
        """`homes` finds owners without a cluster."""
        self._place = place
        self._node_homes = homes
        self._cluster_homes: ClusterHomes | None = None
        self.previous: ClusterHomes | None = None
        """Finds owners by the view before the present one; None if there was no usable one."""
        self.clustered = bool(place.member)
        self.view: ClusterView | None = None
        """The newest view that was adopted; None before the first, and without a cluster."""
        self.version = 0
        """The version of the view; 0 without one."""
        self.view_event = b""
        """The body of the EVENT with the view; empty without one."""
        self.settled: dict[PartitionAddress | tuple[str, str, int, int], int] = (
            {} if self.clustered else homes.settled
        )
        """Owner numbers of partitions that do not move within this view, which saves a request the
        call of `home`. Adopting a view clears it."""
        self.homes_told = [
            with_home(HomeHint(str(place.node), number), b"") for number in range(place.shards)
        ]
        """The bytes before a forwarded answer, which name the owner, by owner number."""
        self._owners = [Owner(place.member, number) for number in range(place.shards)]
        self._numbers = {owner: number for number, owner in enumerate(self._owners)}

    def adopt(self, view: ClusterView) -> None:
        """Find owners by this view from now on."""
        self.view = view
        self.version = view.version
        self.view_event = cql.encode_view(encode_view(view))
        # A member that is dead owns nothing, and must not pass requests on: its view may be old.
        self.previous = self._cluster_homes
        usable = view.active and view.member(self._place.member) is not None
        self._cluster_homes = ClusterHomes(view) if usable else None
        self.settled.clear()

    def refusal(self) -> MaitredError | None:
        """Return why the shard cannot tell which shard owns a partition; None if it can."""
        if not self.clustered or self._cluster_homes is not None:
            return None
        if self.view is None:
            return Unavailable(
                "The node is joining the cluster.", remedy="Ask another node, or again soon."
            )
        if self.view.member(self._place.member) is None:
            return NotOwner(
                "The cluster has declared this node dead.",
                remedy="Ask another node; this one is being started again as a new member.",
            )
        return Unavailable(
            "The cluster has no active node.",
            remedy="Ask again soon; `maitred admin cluster` shows the states of the nodes.",
        )

    @property
    def dead(self) -> bool:
        """Whether the cluster has declared this member dead."""
        return self.view is not None and self.view.member(self._place.member) is None

    def home(
        self, address: PartitionAddress | tuple[str, str, int, int], now: float
    ) -> tuple[int, float]:
        """Return the owner number of a partition at the wall-clock time `now`, and until when it
        holds within this view. Raise for invalid names, or if the shard cannot tell."""
        if not self.clustered:
            found = self._node_homes.home(address, now)
            return found.shard, found.until
        homes = self._cluster_homes
        if homes is None:
            raise self.refusal() or Unavailable("The cluster has no view.")
        home = homes.home(address, now)
        number = self._number(home.member, home.shard)
        if home.until == inf:
            if len(self.settled) >= REMEMBERED_MAX:
                self.settled.clear()
            self.settled[address] = number
        return number, home.until

    def moves_at(self, address: PartitionAddress | tuple[str, str, int, int], now: float) -> float:
        """Return the wall-clock time at which the partition gets another owner within this view;
        infinity: never."""
        if self.clustered and self._cluster_homes is None:
            return inf
        return self.home(address, now)[1]

    def keeper(self, name: str) -> int:
        """Return the owner number of the shard that keeps something that has a name and is no
        partition, such as the count of a user's queries."""
        if not self.clustered:
            return fingerprint32(name) % self._place.shards
        if self._cluster_homes is None:
            raise self.refusal() or Unavailable("The cluster has no view.")
        return self._number(*self._cluster_homes.keeper(name))

    # Numbers

    def number_of(self, member_id: str, shard: int) -> int:
        """Return the owner number of a shard of a member; raise `Unavailable` if the view does not
        have the member."""
        known = self._numbers.get(Owner(member_id, shard))
        if known is not None:
            return known
        member = None if self.view is None else self.view.member(member_id)
        if member is None or shard >= member.shards:
            raise Unavailable(f"The cluster has no shard {shard} of a member {member_id[:60]!r}.")
        return self._number(member, shard)

    def _number(self, member: ClusterMember, shard: int) -> int:
        owner = Owner(member.id, shard)
        number = self._numbers.get(owner)
        if number is None:
            number = self._numbers[owner] = len(self._owners)
            self._owners.append(owner)
            self.homes_told.append(with_home(HomeHint(member.node, shard), b""))
        return number

    def owner(self, number: int) -> Owner:
        """Return the member and the shard with this owner number."""
        return self._owners[number]

    def member(self, number: int) -> ClusterMember | None:
        """Return the member with this owner number, as the view has it; None if the view does not
        have it."""
        return None if self.view is None else self.view.member(self._owners[number].member)

    def everywhere(self) -> list[int]:
        """Return the owner numbers of all shards of all members of the view; of this node's shards
        without one."""
        if self.view is None:
            return list(range(self._place.shards))
        return [
            self._number(member, shard)
            for member in self.view.members
            for shard in range(member.shards)
        ]

    def name(self, number: int) -> str:
        """Return the name of a shard for people."""
        owner = self._owners[number]
        if owner.member == self._place.member:
            return f"Shard {number}"
        member = self.member(number)
        return f"Shard {owner.shard} of {owner.member if member is None else member.name}"
