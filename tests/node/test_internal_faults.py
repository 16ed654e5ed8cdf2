"""A fault of ours: whoever asked is told so, the log has the details, and everything goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from maitred.errors import Overloaded
from maitred.matching.stored_history import StoredHistory
from maitred.protocol.frames import Opcode
from maitred.settings import History, Limits, User
from tests.node.in_process import LOOPS, in_a_loop, node, until
from tests.node.raw import credentials, echo, echoed_in, error_in, options, startup
from tests.node.shops import shop
from tests.node.test_inspection import add, finish, take
from tests.security.cheap import cheaply
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maitred.protocol.messages import Echo, Echoed

    Handler = Callable[[Echo], Any]


def raises(problem: BaseException) -> Handler:
    def handler(_message: Echo) -> Echoed:
        raise problem

    return handler


def raises_later(problem: BaseException) -> Handler:
    async def handler(_message: Echo) -> Echoed:
        await asyncio.sleep(0)
        raise problem

    return handler


class NotForTheWire(msgspec.Struct):
    """An answer that cannot be encoded."""

    thing: object


def unwritable(_message: Echo) -> NotForTheWire:
    return NotForTheWire(object())


async def unwritable_later(_message: Echo) -> NotForTheWire:
    return NotForTheWire(object())


FAULTS: dict[str, Handler] = {
    "raises": raises(RuntimeError("secret details")),
    "raises later": raises_later(RuntimeError("secret details")),
    "cancelled": raises(asyncio.CancelledError()),
    "cancelled later": raises_later(asyncio.CancelledError()),
    "decoding": raises(msgspec.DecodeError("secret details")),
    "recursion": raises(RecursionError("secret details")),
    "nothing": lambda _message: None,
    "unwritable": unwritable,
    "unwritable later": unwritable_later,
    "exits": raises(StopAsyncIteration()),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("fault", FAULTS)
@in_a_loop
async def test_a_handler_that_fails(fault: str, loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, limits=Limits(turn_frames=2)) as running:
        client = await running.ready()
        sound = running.shard.handlers[Opcode.ECHO]
        running.shard.handlers[Opcode.ECHO] = FAULTS[fault]
        # Enough for several turns: each of them has to go on.
        client.write(b"".join(echo("q", stream=n) + options(n + 100) for n in range(7)))
        answers = await client.frames(14)
        for stream in range(7):
            problem = error_in(answers[stream])
            assert problem.code == "internal-error"
            assert "secret details" not in str(problem)
            assert answers[stream + 100].opcode == Opcode.SUPPORTED
        assert running.log.events("error") == ["request failed"] * 7
        assert running.shard.in_flight == 0
        running.shard.handlers[Opcode.ECHO] = sound
        assert echoed_in(await client.ask(echo("q", stream=3))).payload == b"hello"


@pytest.mark.parametrize("refusal", [raises, raises_later])
@in_a_loop
async def test_a_handler_that_refuses_is_no_fault(
    refusal: Callable[[BaseException], Handler], tmp_path: Path
) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        running.shard.handlers[Opcode.ECHO] = refusal(Overloaded("Not now.", remedy="Later."))
        problem = error_in(await client.ask(echo("q")))
        assert (problem.code, problem.sentence, problem.remedy) == (
            "overloaded",
            "Not now.",
            "Later.",
        )
        assert not running.log.events("error")


@in_a_loop
async def test_a_verification_that_fails(tmp_path: Path) -> None:
    """Neither right nor wrong: the client is told, and may try again."""
    users = {"alice": User(secret=cheaply("wonder"), permissions={"*": ["admin"]})}
    async with node(tmp_path, users=users) as running:
        sound = running.shard.users.authenticate

        def faulty(_name: str, _secret: str) -> Any:  # noqa: ANN401 - it never returns
            raise MemoryError("no room for scrypt")

        running.shard.users.authenticate = faulty  # type: ignore[method-assign, assignment]
        client = await running.open()
        await client.ask(startup())
        answer = await client.ask(credentials("alice", "wonder"))
        assert error_in(answer).code == "internal-error"
        running.shard.users.authenticate = sound  # type: ignore[method-assign]
        answer = await client.ask(credentials("alice", "wonder"))
        assert answer.opcode == Opcode.AUTH_SUCCESS


@in_a_loop
async def test_a_look_at_the_clock_that_fails_is_not_the_last(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(handshake_seconds=0.2)) as running:
        looked = 0

        def faulty() -> bool:
            nonlocal looked
            looked += 1
            raise RuntimeError("a disk that is no more")

        running.shard.users.has_changed = faulty  # type: ignore[method-assign]
        client = await running.open()
        assert (await client.last_words()).code == "too-slow"
        await until(lambda: looked >= 3)
        assert "background task failed" not in running.log.events("error")
        assert running.log.events("error")


@in_a_loop
async def test_a_fault_of_histories_costs_no_task_its_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    history = History(stored=True)
    async with shop(tmp_path, Simulated(), history=history) as one:
        async with one.client() as client:
            first = await add(client, 2)
            await finish(client, await take(client, 1))
        monkeypatch.setattr(StoredHistory, "take", fail)
        assert await one.restart()
        assert "histories not stored" in one.node.log.events("error")
        async with one.client() as client:
            (left,) = await take(client, 2)
            assert left.sequence == first + 1
