"""Computes the owners of all partitions by `ClusterHomes`, as nodes and clients do, then takes one
member away and adds one, and counts what moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from time import process_time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from maitred import __version__
from maitred.matching.records import PartitionKey
from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.protocol.cluster import encode_view

if TYPE_CHECKING:
    from studies.cluster.settings import ClusterStudySettings

NOW = 0.0
"""The wall-clock time at which owners are computed; it does not matter, since no batch size changes
gradually."""


class ShardOwner(NamedTuple):
    """The owner of a partition."""

    member: str
    shard: int


@dataclass(frozen=True, slots=True)
class Spread:
    """One placement with one batch size in one cluster."""

    nodes: int
    placement: str
    batch_size: int
    partitions: int
    """Partitions that were placed."""
    view_bytes: int
    """The view as it is sent to shards and clients."""
    max_over_mean: float
    """Partitions of the fullest node over the mean."""
    min_over_mean: float
    shard_max_over_mean: float
    """Partitions of the fullest shard of all nodes over the mean."""
    moved_by_loss: int
    """Partitions that have another node after one node was lost."""
    moved_by_addition: int
    most_to_one_node: int
    """The most partitions that one survivor gets when a node is lost."""
    owner_us: float
    """Processor time to compute one owner, in microseconds. Measured on the machine that ran the
    study."""


def study_view(
    nodes: int, shards: int, *, placement: str = "wrap", batch_size: int = 0
) -> ClusterView:
    """Return a view with this many active members, with realistic names."""
    random = Random(f"members of {nodes}")
    members = [
        ClusterMember(
            id=random.randbytes(8).hex(),
            node=str(UUID(bytes=random.randbytes(16))),
            host=f"10.0.{number // 250}.{number % 250 + 1}",
            port=4_747,
            member_port=4_780,
            shards=shards,
            shard_ports=tuple(4_748 + shard for shard in range(shards)),
            state=MemberState.ACTIVE,
            release=__version__,
            versions=(4,),
            since=1_800_000_000.0 + number,
        )
        for number in range(nodes)
    ]
    return ClusterView(
        cluster="maitred",
        version=2 * nodes,
        members=tuple(sorted(members, key=lambda one: one.id)),
        spread_batch=str(batch_size),
        placement=placement,
    )


def without(view: ClusterView, id_: str) -> ClusterView:
    """Return the next view, without a member."""
    members = tuple(one for one in view.members if one.id != id_)
    return replace(view, version=view.version + 1, members=members)


def study_keys(settings: ClusterStudySettings) -> list[PartitionKey]:
    """Return the partitions of the study."""
    size = settings.partitions_per_queue
    return [
        PartitionKey("default", f"queue-{number // size}", 0, number % size)
        for number in range(settings.partitions)
    ]


def owners(view: ClusterView, keys: list[PartitionKey]) -> list[ShardOwner]:
    """Return the owner of each partition."""
    home = ClusterHomes(view).home
    found = (home(key, NOW) for key in keys)
    return [ShardOwner(one.member.id, one.shard) for one in found]


def spread_of(
    settings: ClusterStudySettings, nodes: int, placement: str, batch_size: int
) -> Spread:
    """Place all partitions, and again with a member less and a member more."""
    keys = study_keys(settings)
    if placement == "steady" and batch_size:
        keys = keys[: settings.steady_partitions]
    larger = study_view(nodes + 1, settings.shards, placement=placement, batch_size=batch_size)
    random = Random(settings.seed)
    added = random.choice(larger.members).id
    view = without(larger, added)
    lost = random.choice(view.members).id
    began = process_time()
    before = owners(view, keys)
    seconds = process_time() - began
    after_loss = owners(without(view, lost), keys)
    after_addition = owners(larger, keys)
    per_node = Counter(one.member for one in before)
    per_shard = Counter(before)
    mean = len(keys) / nodes
    gained = Counter(
        new.member for old, new in zip(before, after_loss, strict=True) if new.member != old.member
    )
    return Spread(
        nodes=nodes,
        placement=placement,
        batch_size=batch_size,
        partitions=len(keys),
        view_bytes=len(encode_view(view)),
        max_over_mean=max(per_node.values()) / mean,
        min_over_mean=min(per_node[one.id] for one in view.members) / mean,
        shard_max_over_mean=max(per_shard.values()) / (mean / settings.shards),
        moved_by_loss=sum(gained.values()),
        moved_by_addition=_moved(before, after_addition),
        most_to_one_node=max(gained.values(), default=0),
        owner_us=1e6 * seconds / len(keys),
    )


def _moved(before: list[ShardOwner], after: list[ShardOwner]) -> int:
    return sum(old.member != new.member for old, new in zip(before, after, strict=True))
