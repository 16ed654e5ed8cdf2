"""Requests that wait at the node: taking one back never loses an answer that is on its way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.client.connection import Connection
from maitred.client.long_poll import LongPoll
from maitred.errors import Cancelled, Closed, DeadlineExceeded, InvalidArgument
from maitred.protocol.messages import Echo, Echoed
from tests.client.handlers import Held as HeldEchoes
from tests.client.handlers import answer_echo
from tests.client.nodes import RunningNode, covered, until

if TYPE_CHECKING:
    from tests.client.conftest import Run


def echo(payload: bytes = b"x") -> Echo:
    return Echo("n", "q", 1, 0, 0, payload)


def test_an_answer_comes(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = client.hold(echo(), 5)
            assert isinstance(held, LongPoll)
            answer = await held.answer()
            assert isinstance(answer, Echoed)
            held.take_back()  # too late, and no harm
            assert await client.hold(echo(b"y"), 5).answer() == Echoed(b"y", 0)

    run(main())


def test_taken_back_it_says_so_once_the_node_knows(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            echoes = HeldEchoes(*node.shards)
            held = client.hold(echo(), 5)
            await echoes.started.get()
            held.take_back()
            held.take_back()
            with pytest.raises(Cancelled):
                await held.answer()
            await echoes.stopped.get()
            assert client.statistics().in_flight == 0

    run(main())


def test_an_answer_that_was_on_its_way_counts(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            answered = asyncio.Event()

            def answer(message: Echo) -> Echoed:
                answered.set()
                return Echoed(message.payload, 0)

            answer_echo(node.shards[0], answer)
            held = client.hold(echo(), 5)
            waiting = asyncio.create_task(held.answer())
            await answered.wait()
            # The node has written its answer in this very turn; we have not read it.
            held.take_back()
            assert await waiting == Echoed(b"x", 0)

    run(main())


def test_taken_back_before_it_was_sent(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            await node.stop()
            await until(client, lambda: not covered(client))
            held = client.hold(echo(), 5)
            held.take_back()
            with pytest.raises(Cancelled, match="before it was sent"):
                await held.answer()

    run(main())


def test_we_wait_longer_than_the_node_was_told_to(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            told: list[int] = []

            async def answer_late(message: Echo) -> Echoed:
                told.append(message.timeout_milliseconds)
                await asyncio.Event().wait()
                raise AssertionError

            node.shards[0].handlers[Echo.opcode] = answer_late
            with pytest.raises(DeadlineExceeded, match="deadline passed"):
                await client.hold(echo(), 0.05).answer()  # the node's words, so it was heard
            assert told[0] <= 50

    run(main())


def test_what_cannot_be_held(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node:
            client = await node.connect()
            with pytest.raises(InvalidArgument):
                client.hold(echo(), 0)
            await client.close()
            with pytest.raises(Closed):
                client.hold(echo(), 1)

    run(main())


def test_one_that_is_sent_in_its_grace_still_has_a_moment(run: Run) -> None:
    """No request says that it has less than no time: the node could not read it."""

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = client.hold(echo(), 5)
            await held.answer()
            call = held
            assert isinstance(call.connection, Connection)
            call.connection.send_call(call, call.deadline + 1.0)
            assert call.message.timeout_milliseconds == 1

    run(main())


def test_a_caller_that_is_cancelled_in_the_turn_of_the_answer_drops_it(run: Run) -> None:
    """The answer then finds a future that is over: the connection goes on for all others."""

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = client.hold(echo(), 5)
            other = client.hold(echo(), 5)
            asking = asyncio.ensure_future(held.answer())
            await asyncio.sleep(0)
            tell = held._told
            assert tell is not None
            asking.cancel()
            tell("in the same turn")
            with pytest.raises(asyncio.CancelledError):
                await asking
            await other.answer()

    run(main())


def test_what_is_told_of_a_failure_comes_in_the_next_turn(run: Run) -> None:
    """A caller that takes a request back is not called in the middle of that."""

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = client.hold(echo(), 5)
            told: list[object] = []
            held.tell(told.append)
            held.fail(Closed("Closed."))
            assert told == []
            await asyncio.sleep(0)
            assert [type(one) for one in told] == [Closed]
            late: list[object] = []
            held.tell(late.append)
            await asyncio.sleep(0)
            assert [type(one) for one in late] == [Closed]

    run(main())
