"""The ring as the admin API tells it: by the view that the gateway has."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from maitred.errors import UnknownNode
from maitred.gateway.admin import ring_views
from maitred.gateway.admin.caller import AdminCaller
from maitred.gateway.admin.ring_views import RingViews
from maitred.membership.homes import ClusterHomes
from tests.membership.observing import member, view

CALLER = AdminCaller(None)
PARTITIONS = 30


class FakeClient:
    """Knows three members, and a queue."""

    def __init__(self) -> None:
        self.view = view(7, [member(number) for number in range(3)])
        self.asked: list[Any] = []

    async def members_known(self, timeout: float) -> None:  # noqa: ASYNC109 - of the interface
        assert timeout > 0

    async def request(self, message: Any, timeout: float) -> Any:  # noqa: ANN401, ASYNC109
        assert timeout > 0
        self.asked.append((message.namespace, message.queue, message.partition))
        return SimpleNamespace(counts=SimpleNamespace(read=PARTITIONS))

    def wall_clock(self) -> float:
        return 0.0


def test_where_the_partitions_of_a_queue_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_views, "PORTION", 7)
    client = FakeClient()
    views = RingViews(cast("Any", SimpleNamespace(requester=lambda: client)))

    def ask(**params: str) -> Any:  # noqa: ANN401
        return asyncio.run(views.ring(CALLER, params))

    ring = ask()
    ids = [one.id for one in client.view.active]
    assert sorted(one.id for one in ring.members) == sorted(ids)
    assert (ring.version, ring.partitions, client.asked) == (7, [], [])
    assert ring.arcs[-1].end == 1.0
    assert {one.member for one in ring.arcs} == {0, 1, 2}
    for one in ring.members:
        assert sum(one.heirs.values()) == pytest.approx(one.share)
        assert one.id not in one.heirs
    gone = ring.members[0]
    told = ask(namespace="shop", queue="mails", leaving=gone.address)
    assert client.asked == [("shop", "mails", 0)]
    homes = ClusterHomes(client.view)
    assert [one.member for one in told.partitions] == [
        homes.home(("shop", "mails", 1, number), 0.0).member.id for number in range(PARTITIONS)
    ]
    # By its own key, a partition moves only if its owner leaves.
    for one in told.partitions:
        assert bool(one.heir) == (one.member == gone.id)
        assert one.heir != gone.id
    # A newer view is shown as soon as the gateway has it.
    client.view = view(8, client.view.members[1:])
    assert len(ask().members) == 2
    with pytest.raises(UnknownNode):
        ask(leaving=client.view.members[0].id + "0")


def test_a_ring_with_very_many_arcs_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_views, "ARCS_MAX", 100)
    state = ring_views.ring_state(FakeClient().view)
    assert state.arcs == []
    assert sum(one.share for one in state.members) == pytest.approx(1)
