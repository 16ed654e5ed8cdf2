"""Shows the hash ring of the cluster: which member has what, and what moves if one leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from maitred.gateway.admin.answers import RingArcRow, RingMember, RingPartition, RingState
from maitred.gateway.admin.node_views import STATUS_SECONDS
from maitred.gateway.admin.overview_views import named_queue
from maitred.membership.ring_map import RingMap, arcs_of, shares_of
from maitred.protocol.tasks import Describe, PartitionDescription
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.client.client import AsyncClient
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway
    from maitred.membership.ring_map import PartitionMove
    from maitred.membership.view import ClusterView

ARCS_MAX: Final = 10_000
"""Most arcs of one answer: those of a hundred members, some 200 kilobytes."""

PORTION: Final = 200
"""Partitions that are placed in one turn of the loop: a few milliseconds."""


class RingViews:
    """The view of the ring."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway
        self._known: tuple[ClusterView, RingState] | None = None
        """The view that was shown last, and its ring."""

    async def ring(self, _caller: AdminCaller, params: Mapping[str, Any]) -> RingState:
        """Return the ring by the view of the gateway, and the partitions of a queue."""
        namespace, queue = named_queue(params)
        client = self._gateway.requester()
        await client.members_known(STATUS_SECONDS)
        view = client.view
        if view is None:
            return RingState(None, 0, [], [], [])
        map_ = RingMap(view, params.get("leaving", ""))
        partitions = await _partitions(client, map_, namespace, queue) if queue else []
        if self._known is None or self._known[0] is not view:
            self._known = (view, ring_state(view))
        return replace(self._known[1], partitions=partitions)


def ring_state(view: ClusterView) -> RingState:
    """Return the ring of a view."""
    arcs = arcs_of(view)
    shares = shares_of(arcs)
    active = sorted(view.active, key=lambda one: one.name)
    ids = {one.name: one.id for one in active}
    places = {one.name: place for place, one in enumerate(active)}
    members = [
        RingMember(
            id=one.id,
            address=one.name,
            shards=one.shards,
            share=shares[one.name].share,
            heirs={ids[name]: share for name, share in shares[one.name].heirs.items()},
        )
        for one in active
    ]
    drawn = arcs if len(arcs) <= ARCS_MAX else []
    rows = [RingArcRow(round(arc.end, 6), places[arc.member]) for arc in drawn]
    return RingState(view.cluster, view.version, members, rows, [])


def partition_of(move: PartitionMove) -> RingPartition:
    """Return the place of a partition as the API tells it."""
    row = RingPartition(partition=move.partition, member=move.member.id, shard=move.shard)
    if move.heir is not None and move.heir.id != move.member.id:
        row.heir, row.heir_shard = move.heir.id, move.heir_shard
    return row


async def _partitions(
    client: AsyncClient, map_: RingMap, namespace: str, queue: str
) -> list[RingPartition]:
    message = Describe(namespace, queue, TASKS, 0, 0)
    root = cast("PartitionDescription", await client.request(message, STATUS_SECONDS))
    found = []
    moves = map_.moves(namespace, queue, TASKS, root.counts.read, client.wall_clock())
    for number, one in enumerate(moves, 1):
        found.append(partition_of(one))
        if number % PORTION == 0:
            await asyncio.sleep(0)
    return found
