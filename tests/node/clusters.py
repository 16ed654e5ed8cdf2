"""Several nodes in this process that are a cluster, with views that the test makes by hand.

Nothing is simulated but the membership: shards dial each other over loopback, prove who they are,
and tell each other views as the real ones do.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import UUID

from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.protocol.messages import Echo
from tests.node.in_process import NodeUnderTest, node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from maitred.node.shard import Shard

SECRET = "5e" * 32
"""The secret of the clusters in these tests."""


def member_of(
    running: NodeUnderTest, state: MemberState = MemberState.ACTIVE, id_: str = ""
) -> ClusterMember:
    """The member that the node is."""
    return ClusterMember(
        id=id_ or running.member,
        node=str(running.identity),
        host="127.0.0.1",
        port=running.port,
        member_port=1,
        shards=len(running.own_ports),
        shard_ports=running.own_ports,
        state=state,
        release="1",
        versions=(1,),
    )


class ClusterUnderTest:
    """Nodes, and the views that they are told."""

    def __init__(self, nodes: list[NodeUnderTest]) -> None:
        self.nodes = nodes

    def view(
        self,
        version: int,
        nodes: Iterable[int] | None = None,
        states: Mapping[int, MemberState] | None = None,
        **more: Any,  # noqa: ANN401 - whatever a view has
    ) -> ClusterView:
        """A view with these nodes, by number, all active unless `states` says otherwise."""
        chosen = range(len(self.nodes)) if nodes is None else nodes
        states = states or {}
        members = [
            member_of(self.nodes[one], states.get(one, MemberState.ACTIVE)) for one in chosen
        ]
        members.sort(key=lambda one: one.id)
        return ClusterView(cluster="test", version=version, members=tuple(members), **more)

    def adopt(self, view: ClusterView, *nodes: int) -> None:
        """Tell these nodes the view, or all of them."""
        for number in nodes or range(len(self.nodes)):
            for shard in self.nodes[number].shards:
                shard.adopt(view)

    def shard(self, node_number: int, shard: int = 0) -> Shard:
        return self.nodes[node_number].shards[shard]

    def queue_of(
        self, node_number: int, shard: int = 0, *, by: ClusterView | None = None, skip: int = 0
    ) -> str:
        """A queue whose root partition belongs to that shard, by this view or the one that the
        shard has."""

        view = by or self.shard(node_number).view
        assert view is not None
        homes, wanted = ClusterHomes(view), self.nodes[node_number].member
        found = 0
        for attempt in range(100_000):
            message = Echo("n", f"q{attempt}", 1, 0, 0, b"")
            home = homes.home((message.namespace, message.queue, 1, 0), 0.0)
            if home.member.id == wanted and home.shard == shard:
                if found == skip:
                    return message.queue
                found += 1
        raise AssertionError("there is no such queue")


@asynccontextmanager
async def cluster(
    directory: Path,
    nodes: int = 2,
    *,
    shards: int = 1,
    adopted: bool = True,
    secrets: Mapping[int, str] | None = None,
    of_cluster: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401 - whatever `node` takes
) -> AsyncIterator[ClusterUnderTest]:
    """So many nodes that are a cluster; all have a view of version 1 if `adopted`."""
    async with AsyncExitStack() as stack:
        made = []
        for number in range(nodes):
            path = directory / f"n{number}"
            path.mkdir()
            own = {
                "identity": UUID(f"6d616974-7265-4000-8000-0000000000{number + 16:02x}"),
                "member": f"{number + 1:016x}",
                "cluster_secret": (secrets or {}).get(number, SECRET),
                **(of_cluster or {}),
            }
            made.append(
                await stack.enter_async_context(
                    node(path, shards=shards, of_cluster=own, **settings)
                )
            )
        together = ClusterUnderTest(made)
        for running in made:
            for shard in running.shards:
                shard.renew_lease(inf)
        if adopted:
            together.adopt(together.view(1))
        yield together
