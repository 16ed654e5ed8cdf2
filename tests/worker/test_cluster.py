"""A worker of a cluster: its long polls and reports follow the partitions."""

from __future__ import annotations

import asyncio
from typing import cast

from maitred.app.app import App
from maitred.errors import NotOwner, Unavailable
from maitred.protocol.queries import Attend
from maitred.protocol.tasks import Finish, Heartbeat, Offer
from tests.app.fake_node import FakeNode
from tests.client.clusters import RunningCluster
from tests.client.nodes import until as until_news
from tests.node.in_process import in_a_loop, until
from tests.worker.running import a_worker

LONG_SECONDS = 300.0
"""Nothing of this length ends by itself in a test."""


def an_app() -> tuple[App, asyncio.Event]:
    app = App("desk")
    go_on = asyncio.Event()

    @app.handler("holding")
    async def holding() -> str:
        await go_on.wait()
        return "held"

    return app, go_on


def a_cluster() -> tuple[RunningCluster, FakeNode, FakeNode]:
    cluster = RunningCluster(2, make=lambda: FakeNode(lease_seconds=LONG_SECONDS))
    first, second = (cast("FakeNode", node) for node in cluster.nodes)
    second.partitions = first.partitions  # they share a store
    return cluster, first, second


@in_a_loop
async def test_offers_attendance_heartbeats_and_ends_go_to_the_new_owner_at_once() -> None:
    app, go_on = an_app()
    cluster, old, new = a_cluster()
    async with (
        cluster,
        a_worker(old, app, slots=2, offer_seconds=LONG_SECONDS, attend_seconds=60) as worker,
    ):
        client = worker._client
        await until_news(client, lambda: client._router.nodes.settled)
        view = cluster.tell(0)
        await until_news(client, lambda: client.view == view)
        await until(lambda: bool(old.heard(Offer) and old.heard(Attend)))
        task = await app.handlers["holding"].enqueue()
        await until(lambda: worker.statistics.busy == 1)
        cluster.tell(1)
        # The task is a few milliseconds old, and is mentioned all the same.
        await until(lambda: bool(new.heard(Offer) and new.heard(Attend) and new.heard(Heartbeat)))
        (mentioned,) = new.heard(Heartbeat)[0].running
        assert mentioned[0] == task.sequence
        await until(lambda: not old.under_way)
        go_on.set()
        await until(lambda: bool(new.heard(Finish)))
        assert not old.heard(Finish)


@in_a_loop
async def test_a_pause_after_a_failure_ends_when_there_is_another_owner() -> None:
    app, _ = an_app()
    cluster, old, new = a_cluster()
    refused: list[object] = []

    def refuse(message: object) -> None:
        refused.append(message)
        raise (Unavailable if isinstance(message, Offer) else NotOwner)("It is not here.")

    async with (
        cluster,
        a_worker(old, app, slots=2, offer_seconds=LONG_SECONDS, attend_seconds=60) as worker,
    ):
        client = worker._client
        worker._context.outage._first = worker._context.outage._longest = LONG_SECONDS
        old.before = {Offer: refuse, Attend: refuse}
        await until_news(client, lambda: client._router.nodes.settled)
        view = cluster.tell(0)
        await until_news(client, lambda: client.view == view)
        worker._take_offers_back()
        worker._attending.tell_all()
        await until(lambda: {type(one) for one in refused} == {Offer, Attend})
        cluster.tell(1)
        await until(lambda: bool(new.heard(Offer) and new.heard(Attend)))
