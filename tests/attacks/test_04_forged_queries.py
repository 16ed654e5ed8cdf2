"""A reservation is good for one query, at the worker and the queue that it was made for.

Random tokens, tokens that were used, and those that came too late are in tests/worker/test_queries.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from maitred.client.links import Links
from maitred.errors import InvalidReservation
from maitred.protocol.queries import Allocation
from maitred.settings import Querying
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker
from tests.worker.test_queries import Desk

if TYPE_CHECKING:
    from maitred.dispatch.effects import Carrier


@in_a_loop
async def test_a_token_is_good_at_its_own_worker_once() -> None:
    first, second = Desk(), Desk()
    async with (
        ReservingNode() as node,
        ReservingNode() as elsewhere,
        a_worker(elsewhere, second.app, "holding", name="two", early_seconds=0.05) as two,
        a_worker(node, first.app, "echo", name="one", fetch_seconds=30.0) as one,
        a_gateway(one) as right,
        a_gateway(two) as wrong,
    ):
        token = node.reserve("echo")
        await until(lambda: one.querying.reservations == 1)
        stolen = await wrong.error(wrong.run(token, "a"))
        assert isinstance(stolen, InvalidReservation)
        assert two.statistics.queries == 0
        # Nobody who shows it elsewhere uses it up, and it is still good where it was made for.
        assert await right.result(right.run(token, "a")) == "a"
        for gateway in (right, wrong):
            assert isinstance(await gateway.error(gateway.run(token, "a")), InvalidReservation)
        assert (one.statistics.queries, two.statistics.queries) == (1, 0)


@in_a_loop
async def test_a_token_of_one_queue_runs_nothing_of_another() -> None:
    """RUN names no queue: the node's word of the reservation does, and decides what is run."""
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "echo", "holding", slots=2) as worker,
        a_gateway(worker) as gateway,
    ):
        token = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        assert await gateway.result(gateway.run(token, "a")) == "a"
        assert desk.begun.empty(), "the handler of the other queue was run"


@in_a_loop
async def test_many_who_guess_find_nothing_and_a_bystander_is_served() -> None:
    desk = Desk()
    async with (
        ReservingNode() as node,
        a_worker(node, desk.app, "echo", early_seconds=0.01, early_queries=10) as worker,
        a_gateway(worker) as attacker,
        a_gateway(worker) as bystander,
    ):
        streams = [attacker.run(os.urandom(16), "a") for _ in range(300)]
        token = node.reserve("echo")
        await until(lambda: worker.querying.reservations == 1)
        assert await bystander.result(bystander.run(token, "b")) == "b"
        for stream in streams:
            problem = await attacker.error(stream)
            assert problem.code in ("invalid-reservation", "overloaded")
        assert worker.statistics.queries == 1


class Caller:
    """Waits for a link."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def linked(self, link: Carrier, now: float) -> None:  # noqa: ARG002
        self.heard.put_nowait("linked")

    def unreachable(self, now: float) -> None:  # noqa: ARG002
        self.heard.put_nowait("unreachable")

    def gone(self, why: str, now: float) -> None:  # noqa: ARG002
        self.heard.put_nowait(why)


@in_a_loop
async def test_who_offers_with_the_session_of_another_gets_none_of_its_queries() -> None:
    """A gateway that has a link to the thief's address does not take it for the worker's."""

    links = Links(
        MagicMock(), Querying(), frame_bytes=2**20, name="gw", secret=os.urandom, encrypted=False
    )
    session = b"worker.........."
    thiefs = Allocation(0, b"t" * 16, session, "ant", "127.0.0.2:1")
    workers = Allocation(0, b"u" * 16, session, "ant", "127.0.0.1:1")
    link: Any = object()
    links.opened((session, thiefs.address), link)
    assert links.open == {(session, thiefs.address): link}
    caller = Caller()
    links.connect(workers, caller, 0.0)
    async with asyncio.timeout(20):
        assert await caller.heard.get() == "unreachable"  # dialled, and nobody listens there
    links.open.clear()
    await links.close()


def test_there_is_one_form_of_a_token() -> None:
    """A longer or shorter one is not understood, whatever it begins with."""
    from msgspec import ValidationError

    from maitred.protocol.query_link import RunQuery, decode_run, encode_run

    for size in (0, 15, 17, 38):
        with pytest.raises(ValidationError):
            decode_run(encode_run(RunQuery(bytes(size), 1, 1_000, 0, b"")))
