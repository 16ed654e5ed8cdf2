"""Shows the nodes of a gateway, the state of their shards, and the caller to itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from maitred import __version__
from maitred.client.gauge_series import SECONDS_MAX, gather_shard_series
from maitred.client.statistics import Unreachable
from maitred.errors import NoCluster
from maitred.gateway.admin.answers import CallerState, NodeRow, NodesPast, NodesState, ShardPast
from maitred.gateway.admin.told_errors import unreachable_shards
from maitred.metrics.points import STEP_SECONDS
from maitred.protocol.cluster import ClusterDescription, DescribeCluster
from maitred.security.permissions import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maitred.client.client import AsyncClient
    from maitred.gateway.admin.caller import AdminCaller
    from maitred.gateway.admin.requesting import RequestingGateway
    from maitred.protocol.messages import ShardStatus

STATUS_SECONDS: Final = 3.0
"""How long shards have to answer: a page that shows which of them do not answer has to come
itself."""


class NodeViews:
    """The views of nodes."""

    def __init__(self, gateway: RequestingGateway) -> None:
        self._gateway = gateway

    async def me(self, caller: AdminCaller, _params: Mapping[str, Any]) -> CallerState:
        """Return who asks, and what that user may do."""
        identity = caller.identity
        permissions = EVERYTHING if identity is None else identity.permissions
        return CallerState(
            user=None if identity is None else identity.name,
            permissions=permissions.granted(),
            release=__version__,
            node=self._gateway.requester().nodes()[0].address,
            with_users=self._gateway.guard.required,
            csrf=caller.csrf,
        )

    async def nodes(self, _caller: AdminCaller, _params: Mapping[str, Any]) -> NodesState:
        """Return the nodes, and the state of each shard."""
        client = self._gateway.requester()
        found, cluster = await asyncio.gather(client.statuses(STATUS_SECONDS), _cluster(client))
        shards = [one for one in found if not isinstance(one, Unreachable)]
        silent = unreachable_shards(one for one in found if isinstance(one, Unreachable))
        if cluster is None:
            rows = _single_nodes(client, shards)
            return NodesState(None, 0, 0, 0.0, "", rows, shards, silent)
        members = [
            NodeRow(**{name: getattr(one, name) for name in NodeRow.__struct_fields__})
            for one in cluster.members
        ]
        return NodesState(
            cluster.cluster,
            cluster.version,
            cluster.protocol,
            cluster.lease_seconds,
            cluster.problem,
            members,
            shards,
            silent,
        )

    async def series(self, _caller: AdminCaller, params: Mapping[str, Any]) -> NodesPast:
        """Return the last hour of each shard."""
        client = self._gateway.requester()
        found = await gather_shard_series(
            client, seconds=params.get("seconds", SECONDS_MAX), timeout=STATUS_SECONDS
        )
        identities = {one.address: one.node or "" for one in client.nodes()}
        return NodesPast(
            STEP_SECONDS,
            found.start,
            [
                ShardPast(identities.get(one.address, ""), one.shard, one.points)
                for one in found.shards
            ],
            unreachable_shards(found.unreachable),
        )


async def _cluster(client: AsyncClient) -> ClusterDescription | None:
    """Return the members of the cluster; None without one."""
    await client.members_known(STATUS_SECONDS)
    if not client.clustered:
        return None
    try:
        answer = await client.request(DescribeCluster(0, 0), STATUS_SECONDS)
    except NoCluster:  # the node has just been started again, without one
        return None
    return cast("ClusterDescription", answer)


def _single_nodes(client: AsyncClient, shards: Sequence[ShardStatus]) -> list[NodeRow]:
    """Return the nodes of the gateway's address, which form no cluster."""
    rows = []
    for view in client.nodes():
        own = [one for one in shards if one.node == view.node]
        draining = any(one.state == "draining" for one in own)
        rows.append(
            NodeRow(
                id="",
                node=view.node or "",
                address=view.address,
                state="draining" if draining else "active" if own else "unreachable",
                release=view.release,
                protocol=0,
                shards=view.shards,
                since=0.0,
                load=sum(one.load for one in own) if own else None,
                beat_seconds_ago=None,
                partitions=None,
                held=None,
                clock_ahead_seconds=None,
            )
        )
    return rows
