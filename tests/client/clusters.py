"""Nodes that tell clients views of a cluster, in the test's own loop: what they say is the test's.

Each node is one of its own: it serves every partition that it is asked for, and says so. A test
decides which views the nodes tell, and sees by the answers where the client has sent its requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import maitred
from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.protocol import cql
from maitred.protocol.cluster import encode_view
from maitred.protocol.frames import EVENT_STREAM, Opcode
from tests.client.nodes import HOST, QUICK, RunningNode, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.client import AsyncClient

ACTIVE = MemberState.ACTIVE
DRAINING = MemberState.DRAINING
JOINING = MemberState.JOINING


def member(number: int, state: MemberState = ACTIVE, **changed: Any) -> ClusterMember:  # noqa: ANN401
    """The member of this number, with addresses that no process listens at."""
    fields: dict[str, Any] = {
        "id": f"{number:016x}",
        "node": f"node-{number}",
        "host": f"host-{number}",
        "port": 4747,
        "member_port": 4700,
        "shards": 2,
        "shard_ports": (4748, 4749),
        "state": state,
    }
    return ClusterMember(**{**fields, **changed})


def a_view(version: int, *members: ClusterMember, **changed: Any) -> ClusterView:  # noqa: ANN401
    ordered = tuple(sorted(members, key=lambda one: one.id))
    fields = {"cluster": "maitred", "version": version, "members": ordered}
    return ClusterView(**{**fields, **changed})


class RunningCluster:
    """Some nodes. Use it in `async with`; all of them are started then."""

    def __init__(
        self, nodes: int = 3, shards: int = 2, make: Callable[[], RunningNode] | None = None
    ) -> None:
        made = make or (lambda: RunningNode(shards))
        self.nodes = [made() for _ in range(nodes)]
        self.version = 0
        self.view: ClusterView | None = None

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.__aexit__()

    def connect(self, *numbers: int, **settings: Any) -> maitred.connect:  # noqa: ANN401
        """A client whose address has these nodes; by default the first one."""
        hosts = ",".join(f"{HOST}:{self.nodes[number].port}" for number in numbers or (0,))
        return maitred.connect(f"maitred://{hosts}", **{**QUICK, **settings})

    def member(self, number: int, state: MemberState = ACTIVE, start: int = 0) -> ClusterMember:
        """A node as a member; `start` counts how often it was started again."""
        node = self.nodes[number]
        return member(
            number,
            state,
            id=f"{start:08x}{number:08x}",
            node=str(node.identity),
            host=HOST,
            port=node.port,
            shards=node.count,
            shard_ports=node.own_ports[: node.count],
        )

    def make_view(self, *members: ClusterMember | int) -> ClusterView:
        """The next view: of these members, or active nodes."""
        self.version += 1
        listed = [self.member(one) if isinstance(one, int) else one for one in members]
        self.view = a_view(self.version, *listed)
        return self.view

    def tell(self, *members: ClusterMember | int) -> ClusterView:
        """Have all nodes tell all clients that registered for it the next view."""
        view = self.make_view(*members)
        self.repeat(view)
        return view

    def repeat(self, view: ClusterView, *numbers: int) -> None:
        """Have these nodes tell this view, by default all."""
        event = cql.encode_view(encode_view(view))
        for number in numbers or range(len(self.nodes)):
            for shard in self.nodes[number].shards:
                for connection in list(shard.connections):
                    if cql.VIEW in connection.events and not connection.closing:
                        connection.send(0, EVENT_STREAM, Opcode.EVENT, event)

    def registered(self, number: int) -> int:
        """How many connections to this node registered for views."""
        return sum(
            cql.VIEW in connection.events
            for shard in self.nodes[number].shards
            for connection in shard.connections
        )


async def joined(client: AsyncClient, cluster: RunningCluster, *members: Any) -> None:  # noqa: ANN401
    """Tell the client a view of these members, and wait until it reached all their shards."""
    await until(client, lambda: client._router.nodes.settled)
    view = cluster.tell(*members)
    await until(client, lambda: client.view == view)
    await client.covered()


def owner(view: ClusterView, partition: int, queue: str = "q") -> tuple[str, int]:
    """The id of the member that owns the partition, and its shard."""
    home = ClusterHomes(view).home(("shop", queue, 1, partition), 0.0)
    return home.member.id, home.shard


def routed(client: AsyncClient, partition: int, queue: str = "q") -> tuple[str, int]:
    """The id of the member that the client would ask, and its shard."""
    route = client._router.route(("shop", queue, 1, partition))
    return route.pool.member, route.shard


def owned_by(view: ClusterView, member_: ClusterMember, queue: str = "q") -> int:
    """A partition that the member owns."""
    return next(one for one in range(1000) if owner(view, one, queue)[0] == member_.id)
