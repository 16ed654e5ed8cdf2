"""The worker's own port: who may come in, and what is said to those who may not."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from maitred import App
from maitred.errors import (
    CannotStart,
    InvalidArgument,
    MaitredError,
    ProtocolViolation,
    TooManyConnections,
    TooSlow,
    UnknownRequest,
    UnknownWorker,
    UnsupportedVersion,
)
from maitred.protocol.frames import ANSWER, EVENT_STREAM, REQUEST, Opcode, encode_frame
from maitred.protocol.query_link import (
    QUERY_LINK_VERSION,
    Greeting,
    Hello,
    Proof,
    RunQuery,
    decode_greeting,
    encode_hello,
    encode_proof,
    encode_run,
    session_proof,
)
from maitred.protocol.worker_address import parse_worker_address
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.worker.querying import CHALLENGE, RawGateway, ReservingNode, a_gateway, encode
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from collections.abc import Callable


def an_app() -> tuple[App, asyncio.Event]:
    app = App("desk")
    go_on = asyncio.Event()

    @app.handler("echo")
    async def echo(text: str) -> str:
        return text

    @app.handler("holding")
    async def holding() -> str:
        await go_on.wait()
        return "held"

    return app, go_on


@in_a_loop
async def test_hello() -> None:
    app, _ = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app, link_frame_bytes=5_000) as worker,
        a_gateway(worker, hello=False) as gateway,
    ):
        greeting = await gateway.hello(worker._session)
        proof = session_proof("worker", worker._session, CHALLENGE)
        assert greeting == Greeting(proof, greeting.challenge, QUERY_LINK_VERSION, 5_000)
        gateway.say(9, Opcode.PING, b"there?")
        assert await gateway.hear(9) == (0, 9, Opcode.PING + ANSWER, b"there?")


@pytest.mark.parametrize(
    ("opcode", "body", "kind"),
    [
        (Opcode.HELLO, encode_hello(Hello(CHALLENGE, 1)), UnsupportedVersion),
        (Opcode.HELLO, b"\xc1", ProtocolViolation),
        (Opcode.HELLO, encode([b"short"]), InvalidArgument),
        (Opcode.PING, b"", ProtocolViolation),
        (Opcode.RUN, encode_run(RunQuery(b"t" * 16, 1, 1, 1, b"")), ProtocolViolation),
        (Opcode.PROVE, encode_proof(Proof(bytes(32))), ProtocolViolation),
        (Opcode.STARTUP, b"", ProtocolViolation),
        (Opcode.HELLO, bytes(2_000), ProtocolViolation),
    ],
)
@in_a_loop
async def test_who_does_not_say_hello_properly_hears_why_and_is_gone(
    opcode: int, body: bytes, kind: type[MaitredError]
) -> None:
    app, _ = an_app()
    log = RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, app, log=log) as worker,
        a_gateway(worker) as good,
        a_gateway(worker, hello=False) as gateway,
    ):
        gateway.say(0, opcode, body)
        assert type(await gateway.error(0)) is kind or kind is ProtocolViolation
        await gateway.gone()
        assert await good.result(good.run(node.reserve("echo"), "a")) == "a"
        assert log.events("warning") == ["a connection was refused"]


@pytest.mark.parametrize(
    ("opcode", "make", "kind"),
    [
        (Opcode.PROVE, lambda _: encode_proof(Proof(bytes(32))), UnknownWorker),
        (Opcode.PROVE, lambda proof: encode_proof(Proof(proof, "", 10)), InvalidArgument),
        (Opcode.PROVE, lambda proof: encode([proof[:31]]), InvalidArgument),
        (Opcode.HELLO, lambda _: encode_hello(Hello(CHALLENGE)), ProtocolViolation),
        (Opcode.PING, lambda _: b"", ProtocolViolation),
        (Opcode.PROVE, lambda _: bytes(2_000), ProtocolViolation),
    ],
)
@in_a_loop
async def test_who_does_not_prove_that_the_node_sent_it_is_gone(
    opcode: int, make: Callable[[bytes], bytes], kind: type[MaitredError]
) -> None:
    app, _ = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app) as worker,
        a_gateway(worker, hello=False) as gateway,
    ):
        gateway.say(0, Opcode.HELLO, encode_hello(Hello(CHALLENGE)))
        greeting = decode_greeting((await gateway.hear(0)).body)
        proof = session_proof("gateway", worker._session, greeting.challenge)
        gateway.say(0, opcode, make(proof))
        assert type(await gateway.error(EVENT_STREAM)) is kind or kind is ProtocolViolation
        await gateway.gone()


@in_a_loop
async def test_a_large_query_may_follow_the_proof_in_the_same_write() -> None:
    app, _ = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app) as worker,
        a_gateway(worker, hello=False) as gateway,
    ):
        gateway.say(0, Opcode.HELLO, encode_hello(Hello(CHALLENGE)))
        greeting = decode_greeting((await gateway.hear(0)).body)
        proof = session_proof("gateway", worker._session, greeting.challenge)
        message = RunQuery(node.reserve("echo"), 7, 30_000, 2**20, encode(["a" * 100_000]))
        gateway.transport.write(
            encode_frame(REQUEST, 0, 0, Opcode.PROVE, encode_proof(Proof(proof, frame_bytes=2**20)))
            + encode_frame(REQUEST, 0, 1, Opcode.RUN, encode_run(message))
        )
        assert await gateway.result(1) == "a" * 100_000


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\x02\x00", b"\x04", b"\xff" * 50],
)
@in_a_loop
async def test_garbage(garbage: bytes) -> None:
    app, _ = an_app()
    log = RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, app, log=log, link_seconds=0.1) as worker,
        a_gateway(worker) as good,
        a_gateway(worker, hello=False) as gateway,
    ):
        gateway.transport.write(garbage)
        assert isinstance(await gateway.error(0), MaitredError)
        await gateway.gone()
        await until(lambda: len(worker._listener.links) == 1)
        assert await good.result(good.run(node.reserve("echo"), "a")) == "a"


@in_a_loop
async def test_garbage_in_the_middle_ends_that_link_and_its_queries_only() -> None:
    app, go_on = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app, slots=2) as worker,
        a_gateway(worker) as good,
        a_gateway(worker) as gateway,
    ):
        kept = good.run(node.reserve("holding"))
        gateway.run(node.reserve("holding"))
        await until(lambda: worker.statistics.queries == 2)
        gateway.transport.write(b"garbage that is no frame")
        assert isinstance(await gateway.error(EVENT_STREAM), ProtocolViolation)
        await gateway.gone()
        await until(lambda: worker.statistics.busy == 1)
        go_on.set()
        assert await good.result(kept) == "held"


@in_a_loop
async def test_a_stream_that_is_in_use_cannot_be_used_again() -> None:
    app, _ = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app) as worker,
        a_gateway(worker) as gateway,
    ):
        gateway.run(node.reserve("holding"))
        await until(lambda: worker.statistics.queries == 1)
        gateway.next_stream = 0
        gateway.run(node.reserve("holding"))
        problem = await gateway.error(EVENT_STREAM)
        assert "Stream 1" in problem.sentence
        await gateway.gone()
        await until(lambda: worker.querying.running == {})


@pytest.mark.parametrize(
    ("opcode", "body", "kind"),
    [
        (Opcode.RUN, b"\xc1", ProtocolViolation),
        (Opcode.RUN, encode([b"short", 1, 1, 1, b""]), InvalidArgument),
        (Opcode.CREDIT, b"\x00", InvalidArgument),
        (Opcode.RELEASE, b"short", InvalidArgument),
        (Opcode.HELLO, b"", UnknownRequest),
        (Opcode.ADD, b"", UnknownRequest),
        (0x7F, b"", UnknownRequest),
    ],
)
@in_a_loop
async def test_a_frame_that_makes_no_sense_is_answered_and_nothing_else_disturbed(
    opcode: int, body: bytes, kind: type[MaitredError]
) -> None:
    app, go_on = an_app()
    log = RecordedLog()
    async with (
        ReservingNode() as node,
        a_worker(node, app, log=log) as worker,
        a_gateway(worker) as gateway,
    ):
        kept = gateway.run(node.reserve("holding"))
        await until(lambda: worker.statistics.queries == 1)
        for stream in (100, 101, 102):
            gateway.say(stream, opcode, body)
            assert isinstance(await gateway.error(stream), kind)
        gateway.credit(555, 10)  # of a stream that is over, for all we know
        gateway.say(556, Opcode.CANCEL)
        go_on.set()
        assert await gateway.result(kept) == "held"
        assert log.events("warning") == ["a frame was refused"]
        # On a stream that is in use the answer would be taken for the query's.
        go_on.clear()
        stream = gateway.run(node.reserve("holding"))
        await until(lambda: worker.statistics.queries == 2)
        gateway.say(stream, opcode, body)
        assert isinstance(await gateway.error(EVENT_STREAM), ProtocolViolation)
        await gateway.gone()


@in_a_loop
async def test_flags_and_streams_below_zero() -> None:
    app, _ = an_app()
    async with ReservingNode() as node, a_worker(node, app) as worker:
        for flags, stream in ((1, 5), (0, -7)):
            async with a_gateway(worker) as gateway:
                gateway.transport.write(encode_frame(REQUEST, flags, stream, Opcode.PING, b""))
                assert isinstance(await gateway.error(EVENT_STREAM), ProtocolViolation)
                await gateway.gone()


@in_a_loop
async def test_who_says_nothing_is_not_waited_for_and_there_is_a_limit() -> None:
    app, _ = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app, links=1, link_seconds=0.5) as worker,
        a_gateway(worker) as good,
        a_gateway(worker, hello=False) as one_too_many,
    ):
        assert isinstance(await one_too_many.error(0), TooManyConnections)
        await one_too_many.gone()
        # Half a frame is not waited for.
        good.transport.write(encode_frame(REQUEST, 0, 1, Opcode.PING, b"12345678")[:-1])
        assert isinstance(await good.error(EVENT_STREAM), TooSlow)
    async with (
        ReservingNode() as node,
        a_worker(node, app, link_seconds=0.5) as worker,
        a_gateway(worker, hello=False) as silent,
    ):
        assert isinstance(await silent.error(0), TooSlow)
        await silent.gone()


@in_a_loop
async def test_strangers_who_fill_the_listener_give_way_to_gateways() -> None:
    app, _ = an_app()

    async def is_served(gateway: RawGateway, node: ReservingNode) -> bool:
        return bool(await gateway.result(gateway.run(node.reserve("echo"), "a")) == "a")

    async with (
        ReservingNode() as node,
        a_worker(node, app, links=3, link_seconds=60) as worker,
        a_gateway(worker) as first,
    ):
        assert await is_served(first, node)
        async with (
            a_gateway(worker, hello=False) as older,
            a_gateway(worker, hello=False) as newer,
        ):
            await until(lambda: len(worker._listener.links) == 3)
            async with a_gateway(worker) as second:
                await older.gone()
                assert await is_served(second, node)
                async with a_gateway(worker) as third:
                    await newer.gone()
                    assert await is_served(third, node)
                    assert await is_served(second, node)
                    assert await is_served(first, node)


@in_a_loop
async def test_a_gateway_that_does_not_read_is_given_up() -> None:
    app = App("desk")

    @app.handler("large")
    async def large() -> bytes:
        return bytes(30_000_000)

    async with (
        ReservingNode() as node,
        a_worker(node, app, stalled_seconds=0.5) as worker,
        a_gateway(worker) as gateway,
    ):
        gateway.transport.pause_reading()
        gateway.run(node.reserve("large", result_bytes=2**26), timeout=30)
        await until(lambda: worker.statistics.done == 1)
        assert len(worker._listener.links) == 1
        await until(lambda: not worker._listener.links, 10)


@in_a_loop
async def test_whatever_is_said_the_worker_lives() -> None:
    chance = random.Random(4711)
    app, _ = an_app()
    async with ReservingNode() as node, a_worker(node, app, early_seconds=0.01) as worker:
        for _ in range(60):
            async with a_gateway(worker) as gateway:
                for _ in range(chance.randrange(1, 6)):
                    opcode = chance.choice([*range(0x5F, 0x68), Opcode.CANCEL, 0x00, 0xE1])
                    body = chance.choice([b"", chance.randbytes(chance.randrange(40))])
                    if chance.random() < 0.3:
                        body = encode_run(RunQuery(chance.randbytes(16), 1, 10, 10, body))
                    gateway.say(chance.randrange(4), opcode, body)
        await until(lambda: not worker._listener.links)
        async with a_gateway(worker) as good:
            assert await good.result(good.run(node.reserve("echo"), "a")) == "a"
        assert worker.statistics.busy == 0


@in_a_loop
async def test_a_port_that_is_taken() -> None:
    app, _ = an_app()
    async with ReservingNode() as node, a_worker(node, app) as worker:
        await until(lambda: bool(worker.address))
        session = await app.session()
        settings = WorkerSettings(port=parse_worker_address(worker.address).port)
        other = Worker(
            session.client,
            list(app.handlers.values()),
            settings,
            "other",
            Surroundings.real(),
            RecordedLog(),
        )
        with pytest.raises(CannotStart, match="cannot listen"):
            await other.run()


@in_a_loop
async def test_who_listens_everywhere_is_reached_where_the_node_sees_it() -> None:
    app, _ = an_app()
    async with (
        ReservingNode() as node,
        a_worker(node, app, host="0.0.0.0", public_without_tls=True) as worker,  # noqa: S104 - that is what it is about
        a_gateway(worker) as gateway,
    ):
        assert parse_worker_address(worker.address).host == ""
        assert await gateway.result(gateway.run(node.reserve("echo"), "a")) == "a"
