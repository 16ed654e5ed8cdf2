"""A node that leaves the ring goes on for a while, and forwards requests that come late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from maitred.logs import silent
from maitred.node.node_membership import NodeMembership
from maitred.settings import ClusterSettings, Node
from maitred.simulation.world import World
from tests.membership.observing import member, view

FORWARD_SECONDS = 7.0


@pytest.mark.parametrize(("others", "seconds"), [(1, FORWARD_SECONDS), (0, 0.0)], ids=str)
def test_late_requests_have_time_unless_no_other_node_is_there(others: int, seconds: float) -> None:
    left_at: list[float] = []

    async def main(world: World) -> None:
        loop = asyncio.get_running_loop()

        async def leave() -> None:
            left_at.append(loop.time())

        unused: Any = None
        membership = NodeMembership(
            open_table=unused,
            secret=b"",
            settings=Node(cluster=ClusterSettings(forward_seconds=FORWARD_SECONDS)),
            announced=("127.0.0.1", 4747),
            member_port=4746,
            surroundings=world.host("a").surroundings,
            log=silent(),
            tell=unused,
            load=unused,
        )
        agent: Any = SimpleNamespace(leave=leave)
        membership._agent = agent
        membership.view = view(1, map(member, range(1 + others)))
        began = loop.time()
        await membership.leave()
        assert left_at == [began] * others
        assert loop.time() - began == pytest.approx(seconds)

    with World(1) as world:
        world.run(main(world))
