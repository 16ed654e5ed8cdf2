"""What a worker tells the node of reservations that are counted: what it has, and what is over."""

from __future__ import annotations

from typing import Any

import pytest

from maitred.errors import Unavailable
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import PROOF_BYTES, Noted, Running
from maitred.protocol.tasks import Offer
from maitred.worker import permit_reports
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker
from tests.worker.test_queries import Desk

PROOF = b"p" * PROOF_BYTES


class CountingNode(ReservingNode):
    """One that all of its reservations are told of."""

    async def start(self, *numbers: int) -> None:
        await super().start(*numbers)
        for shard in self.shards:
            shard.handlers[Opcode.RUNNING] = self._hooked(self._running)

    async def _running(self, _message: Running) -> Noted:
        return Noted()

    def reserve(self, queue: str, token: bytes | None = None, **terms: Any) -> bytes:  # noqa: ANN401
        return super().reserve(queue, token, **{"proof": PROOF, **terms})

    def ended(self) -> list[bytes]:
        return [
            proven.removesuffix(PROOF)
            for one in self.heard(Running)
            for each in one.ended.values()
            for proven in each
        ]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody has to wait for it."""
    monkeypatch.setattr(permit_reports, "AGAIN_SECONDS", 0.05)


@in_a_loop
async def test_what_runs_is_said_again_and_again_and_its_end_at_once() -> None:
    desk = Desk()
    async with (
        CountingNode() as node,
        a_worker(node, desk.app, "holding", fetch_seconds=30.0) as worker,
        a_gateway(worker) as gateway,
    ):
        first, second = node.reserve("holding"), node.reserve("holding", user="bob")
        running = {"ann": [first + PROOF], "bob": [second + PROOF]}
        await until(lambda: any(one.running == running for one in node.heard(Running)))
        streams = [gateway.run(first, "a"), gateway.run(second, "b")]
        assert {await desk.begun.get(), await desk.begun.get()} == {"a", "b"}
        before = len(node.heard(Running))
        await until(lambda: len(node.heard(Running)) > before + 2)
        assert node.heard(Running)[-1].running == running
        assert not node.ended()
        # Who hears of a reservation once more, while it is in use, does not take it for over.
        node.reserve("holding", first)
        await until(lambda: not node.to_reserve["holding"])
        desk.go_on.set()
        assert [await gateway.result(stream) for stream in streams] == ["a", "b"]
        await until(lambda: sorted(node.ended()) == [first, second])
        assert not node.heard(Running)[-1].running
        # And then there is nothing more to say.
        await until(
            lambda: not worker.querying.permits._places and worker.querying.permits._timer is None
        )


@in_a_loop
async def test_whatever_becomes_of_a_reservation_it_is_over() -> None:
    desk = Desk()
    async with (
        CountingNode() as node,
        a_worker(node, desk.app, "holding", "echo", slots=1, fetch_seconds=30.0) as worker,
        a_gateway(worker) as gateway,
    ):
        expired = node.reserve("echo", reservation_seconds=0.02)
        await until(lambda: node.ended() == [expired])
        released = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        gateway.say(0, Opcode.RELEASE, released)
        await until(lambda: released in node.ended())
        early = node.token()
        gateway.say(0, Opcode.RELEASE, early)
        gateway.say(0, Opcode.PING)
        await gateway.hear(0)
        node.reserve("echo", early)
        await until(lambda: early in node.ended())
        misfit = node.reserve("echo")
        await gateway.over(gateway.run(misfit, payload=b"\xc1"))
        await until(lambda: misfit in node.ended())
        # One slot that was on offer in two places.
        await until(lambda: len(node.held(Offer)) == 2)
        both = {node.reserve("holding"), node.reserve("echo")}
        await until(lambda: len(both & {*node.ended()}) == 1)
        assert worker.statistics.busy == 1
        for token in both:
            gateway.say(0, Opcode.RELEASE, token)
        await until(lambda: both <= {*node.ended()})


@in_a_loop
async def test_what_the_node_did_not_hear_is_said_again() -> None:
    desk = Desk()
    async with (
        CountingNode() as node,
        a_worker(node, desk.app, "echo") as worker,
        a_gateway(worker) as gateway,
    ):

        async def deaf(_: object) -> None:
            raise Unavailable("Not now.")

        node.before[Running] = deaf
        token = node.reserve("echo")
        assert await gateway.result(gateway.run(token, "a")) == "a"
        await until(lambda: node.ended().count(token) > 1)
        del node.before[Running]
        await until(lambda: not worker.querying.permits._places)


@in_a_loop
async def test_what_is_not_counted_is_not_spoken_of() -> None:
    desk = Desk()
    async with (
        CountingNode() as node,
        a_worker(node, desk.app, "echo") as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("echo", proof=b"")
        assert await gateway.result(gateway.run(token, "a")) == "a"
        assert not worker.querying.permits._places
        assert not node.heard(Running)
