"""A request that arrives at the wrong shard is answered all the same, or refused in words."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from maitred.node.peers import Peer, PeerShard
from maitred.node.work import ForwardedWork
from maitred.protocol.frames import CUSTOM_PAYLOAD, REQUEST, Opcode, encode_frame
from maitred.protocol.messages import Echo, HomeHint
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.settings import Limits
from tests.node.in_process import LOOPS, NODE, in_a_loop, node, until
from tests.node.raw import echo, echoed_in, error_in, home_in, status, status_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from maitred.errors import MaitredError
    from maitred.node.connection import NodeConnection
    from maitred.node.peer_link import PeerLink


def with_links(loop: object, limits: Limits | None = None) -> PeerShard:
    """A shard of a node without a cluster, as its links see it."""
    shard = SimpleNamespace(
        loop=loop,
        limits=limits or Limits(),
        owners=SimpleNamespace(view=None),
        owner_name=lambda owner: f"Shard {owner}",
    )
    return cast("PeerShard", shard)


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_the_answer_tells_where_the_key_lives(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, shards=3) as running:
        client = await running.ready(0)
        for number in range(3):
            answer = await client.ask(echo(running.queue_of(number), b"x"))
            assert echoed_in(answer) == echoed_in(answer).__class__(b"x", number)
            assert home_in(answer) == (None if number == 0 else HomeHint(str(NODE), number))
            assert answer.flags == (0 if number == 0 else CUSTOM_PAYLOAD)


@in_a_loop
async def test_each_partition_has_its_own_home(tmp_path: Path) -> None:
    async with node(tmp_path, shards=3) as running:
        client = await running.ready(0)
        client.write(b"".join(echo("q", partition=part, stream=part) for part in range(100)))
        answers = await client.frames(100)
        for part, answer in answers.items():
            expected = running.shard.owner_of(Echo("n", "q", 1, part, 0, b""))
            assert echoed_in(answer).shard == expected
        assert {echoed_in(answer).shard for answer in answers.values()} == {0, 1, 2}


@in_a_loop
async def test_errors_of_the_owner_are_passed_on(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready(0)

        def faulty(_message: Echo) -> Any:  # noqa: ANN401 - it never returns
            raise RuntimeError("a fault of ours")

        running.shards[1].handlers[Opcode.ECHO] = faulty
        problem = error_in(await client.ask(echo(running.queue_of(1))))
        assert problem.code == "internal-error"
        assert "a fault of ours" not in str(problem)
        assert status_in(await client.ask(status(0))).errors == {"internal-error": 1}


@in_a_loop
async def test_an_owner_that_is_not_there(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        running.kill(1)
        client = await running.ready(0)
        queue = running.queue_of(1)
        for _ in range(3):
            problem = error_in(await client.ask(echo(queue, stream=4)))
            assert problem.code == "unavailable"
            assert "Shard 1" in problem.sentence
        # What is at home here goes on.
        assert echoed_in(await client.ask(echo(running.queue_of(0)))).payload == b"hello"
        await running.start_again(1)
        assert echoed_in(await client.ask(echo(queue))).shard == 1


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_an_owner_that_dies_with_requests(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, shards=2) as running:
        client = await running.ready(0)
        queue = running.queue_of(1)
        for _ in range(2):
            client.write(b"".join(echo(queue, stream=n, hold=30_000) for n in range(50)))
            await until(lambda: running.shards[1].in_flight == 50)
            running.kill(1)
            answers = await client.frames(50)
            for answer in answers.values():
                problem = error_in(answer)
                assert problem.code == "connection-lost"
                assert "Shard 1" in problem.sentence
            await running.start_again(1)
            # Whoever asks while the old link is being noticed may be told so; nobody hangs.
            assert echoed_in(await client.ask(echo(queue))).shard == 1
        assert status_in(await client.ask(status(1))).restarts == 1


@in_a_loop
async def test_an_owner_that_dies_while_requests_are_sent(tmp_path: Path) -> None:
    """Between its death and the end of the link: one typed answer for each, never a hang."""
    async with node(tmp_path, shards=2) as running:
        client = await running.ready(0)
        queue = running.queue_of(1)
        await client.ask(echo(queue))
        for round_ in range(5):
            client.write(b"".join(echo(queue, stream=n) for n in range(300)))
            if round_ % 2:
                await client.drained()
                await asyncio.sleep(0)
            running.kill(1)
            for answer in (await client.frames(300)).values():
                if answer.opcode == Opcode.ERROR:
                    assert error_in(answer).code in {"connection-lost", "unavailable"}
                else:
                    assert echoed_in(answer).shard == 1
            await running.start_again(1)


@in_a_loop
async def test_a_client_that_leaves_takes_its_requests_back(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready(0)
        client.write(echo(running.queue_of(1), hold=30_000))
        await until(lambda: running.shards[1].in_flight == 1)
        client.reset()
        await until(lambda: running.shards[1].in_flight == 0)
        assert running.shards[0].in_flight == 0


@in_a_loop
async def test_the_link_has_no_clients_limit_of_requests_under_way(tmp_path: Path) -> None:
    """It carries those of many clients, each of whom keeps to the limit."""
    async with node(tmp_path, shards=2, limits=Limits(in_flight=2)) as running:
        queue = running.queue_of(1)
        clients = [await running.ready(0) for _ in range(4)]
        for client in clients:
            client.write(echo(queue, stream=1, hold=50) + echo(queue, stream=2, hold=50))
        for client in clients:
            for answer in (await client.frames(2)).values():
                assert echoed_in(answer).shard == 1


@in_a_loop
async def test_a_request_may_grow_when_it_is_passed_on(tmp_path: Path) -> None:
    """The largest frame, with a field left out that is filled in on the way."""
    limits = Limits(frame_bytes=4096, payload_bytes=4096)
    async with node(tmp_path, shards=2, limits=limits) as running:
        client = await running.ready(0)
        queue = running.queue_of(1)
        client.write(echo(queue, stream=1, hold=100))
        for timeout in (127, 60_000):
            body = msgspec.msgpack.encode(["n", queue, 1, 0, timeout, b""])
            payload = bytes(4096 - len(body) - 1)  # one more byte for the larger length
            body = msgspec.msgpack.encode(["n", queue, 1, 0, timeout, payload])
            assert len(body) == 4096
            answer = await client.ask(encode_frame(REQUEST, 0, 2, Opcode.ECHO, body))
            assert echoed_in(answer).payload == payload
        assert (await client.frame()).stream == 1  # what others had under way went on


@in_a_loop
async def test_both_directions_full_at_once(tmp_path: Path) -> None:
    """Each end of the link has more to say than fits: none may wait for the other to read first."""
    async with node(tmp_path, shards=2) as running:
        queue = running.queue_of(1)
        payload = bytes(256 * 1024)
        clients = [await running.ready(0) for _ in range(6)]

        async def exchange(client: Any) -> None:  # noqa: ANN401 - a RawClient
            client.write(b"".join(echo(queue, payload, stream=n, timeout=5000) for n in range(10)))
            for answer in (await client.frames(10)).values():
                assert echoed_in(answer).payload == payload

        await asyncio.gather(*map(exchange, clients))


class Deaf(asyncio.Protocol):
    """Takes a link and never answers; the most deaf do not even read."""

    def __init__(self, made: list[asyncio.Transport], *, reads: bool) -> None:
        self._made = made
        self._reads = reads

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        self._made.append(made)
        if not self._reads:
            made.pause_reading()


@asynccontextmanager
async def deaf_owner(path: str, *, reads: bool) -> AsyncIterator[list[asyncio.Transport]]:
    """Somebody else in the owner's place, until the end of the block; gives its links."""
    made: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: Deaf(made, reads=reads), path)
    try:
        yield made
    finally:
        server.close()
        for transport in made:
            transport.abort()


@in_a_loop
async def test_an_owner_that_does_not_keep_up(tmp_path: Path) -> None:
    limits = Limits(forward_buffer_bytes=256 * 1024)
    async with node(tmp_path, shards=2, limits=limits) as running:
        running.kill(1)
        client = await running.ready(0)
        queue = running.queue_of(1)
        payload = bytes(64 * 1024)
        async with deaf_owner(running.peer_paths[1], reads=False):
            client.write(b"".join(echo(queue, payload, stream=n) for n in range(100)))
            refused = await client.frame()
            problem = error_in(refused)
            assert problem.code == "overloaded"
            assert "Shard 1" in problem.sentence
            link = running.shard._peers.known[1]._link
            assert link is not None
            most = limits.forward_buffer_bytes + 2 * len(payload)
            assert link.unsent_bytes < most
        # What is at home here goes on, and the rest is told when the owner is gone.
        client.write(echo(running.queue_of(0), stream=200))
        answers = await client.frames(100) | {refused.stream: refused}
        assert echoed_in(answers.pop(200)).shard == 0
        codes = {error_in(answer).code for answer in answers.values()}
        assert len(answers) == 100
        assert {"overloaded", "connection-lost"} <= codes
        assert codes <= {"overloaded", "connection-lost", "unavailable"}


@in_a_loop
async def test_an_owner_that_says_nothing(tmp_path: Path) -> None:
    """It takes the connection and never answers: the request's own time ends the wait."""
    async with node(tmp_path, shards=2) as running:
        running.kill(1)
        client = await running.ready(0)
        async with deaf_owner(running.peer_paths[1], reads=True) as links:
            answer = await client.ask(echo(running.queue_of(1), timeout=50))
            assert error_in(answer).code == "deadline-exceeded"
            assert len(links) == 1  # it was there, and it was asked
            await client.lives()
        await until(lambda: running.shard._peers.known[1]._link is None)


@in_a_loop
async def test_a_link_that_ended_before_it_was_ready_is_not_kept() -> None:
    """Otherwise every later request would be refused, for ever."""
    loop = asyncio.get_running_loop()

    class Listening:
        """A loop on which the connection is lost before whoever asked for it goes on."""

        create_task = staticmethod(loop.create_task)
        time = staticmethod(loop.time)
        attempts = 0

        async def create_unix_connection(
            self, factory: Callable[[], PeerLink], _path: str
        ) -> tuple[None, PeerLink]:
            self.attempts += 1
            link = factory()
            link.connection_lost(None)
            return None, link

    class Waiting:
        over = False
        told = 0

        def ask(self, *_: object) -> None:
            raise AssertionError("it was asked over a dead link")

        def unreachable(self) -> None:
            self.told += 1

    listening = Listening()
    peer = Peer(with_links(listening), 1, 1, "nowhere")
    message = Echo("n", "q", 1, 0, 1000, b"")
    for attempt in (1, 2):
        work = Waiting()
        peer.forward(cast("ForwardedWork", work), message, loop.time() + 1)
        await until(lambda work=work: work.told == 1)  # type: ignore[misc]
        assert listening.attempts == attempt


@in_a_loop
async def test_what_is_left_of_a_day_is_at_most_a_day() -> None:
    """A day added to a time and taken away again is sometimes a bit more, which no shard takes."""

    class Here:
        def __init__(self, now: float) -> None:
            self.under_way: dict[int, object] = {}
            self.loop = self
            self.now = now

        def time(self) -> float:
            return self.now

        def work_begins(self, *_: object) -> None: ...

    sent: list[int] = []

    class Link:
        told = 0

        def ask(self, _opcode: int, body: bytes, *_: object) -> int:
            sent.append(msgspec.msgpack.decode(body)[4])
            return 0

    for step in range(1000):
        here = Here(1_000_000.3 + step * 0.777)
        work = ForwardedWork(cast("NodeConnection", here), 0, Opcode.ECHO, 0, 1)
        deadline = here.now + TIMEOUT_MAX_MILLISECONDS * 0.001
        message = Echo("n", "q", 1, 0, TIMEOUT_MAX_MILLISECONDS, b"")
        work.ask(cast("PeerLink", Link()), message, deadline)
    assert set(sent) == {TIMEOUT_MAX_MILLISECONDS}


@pytest.mark.parametrize("beyond", [0, 1])
@in_a_loop
async def test_forward_buffer_bytes_at_it_and_past_it(beyond: int) -> None:
    limits = Limits(forward_buffer_bytes=1_000)
    peer = Peer(with_links(asyncio.get_running_loop(), limits), 1, 1, "nowhere")

    class Link:
        unsent_bytes = limits.forward_buffer_bytes + beyond

    outcomes: list[str] = []

    class Work:
        def ask(self, *_: object) -> None:
            outcomes.append("asked")

        def stop(self, reason: MaitredError) -> None:
            outcomes.append(reason.code)

    peer._link = cast("PeerLink", Link())
    peer.forward(cast("ForwardedWork", Work()), Echo("n", "q", 1, 0, 1000, b""), 1.0)
    assert outcomes == (["overloaded"] if beyond else ["asked"])


@in_a_loop
async def test_those_who_waited_for_the_link_are_not_too_much_for_it_together() -> None:
    loop = asyncio.get_running_loop()
    limits = Limits(forward_buffer_bytes=1_000)
    outcomes: list[str] = []

    class Link:
        closing = False
        unsent_bytes = 0

    class Connecting:
        """A loop on which it takes until all have come."""

        create_task = staticmethod(loop.create_task)
        time = staticmethod(loop.time)
        may_go_on = asyncio.Event()

        async def create_unix_connection(self, *_: object) -> tuple[None, Link]:
            await self.may_go_on.wait()
            return None, Link()

    class Work:
        over = False

        def ask(self, link: Link, *_: object) -> None:
            link.unsent_bytes += 600
            outcomes.append("asked")

        def stop(self, reason: MaitredError) -> None:
            outcomes.append(reason.code)

    connecting = Connecting()
    peer = Peer(with_links(connecting, limits), 1, 1, "nowhere")
    for _ in range(4):
        peer.forward(cast("ForwardedWork", Work()), Echo("n", "q", 1, 0, 1000, b""), 1.0)
    connecting.may_go_on.set()
    await until(lambda: len(outcomes) == 4)
    assert outcomes == ["asked", "asked", "overloaded", "overloaded"]
