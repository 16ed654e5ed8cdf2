"""Requests: each gets exactly one answer, on its stream, whatever becomes of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.messages import Echo, Echoed, encode
from maitred.settings import Limits
from tests.node.in_process import LOOPS, in_a_loop, node, until
from tests.node.raw import (
    PATIENCE_SECONDS,
    cancel,
    echo,
    echoed_in,
    error_in,
    options,
    register,
    status_in,
)
from tests.node.raw import status as status_frame

if TYPE_CHECKING:
    from pathlib import Path


def ours(body: bytes, *, opcode: int = Opcode.ECHO, stream: int = 0, flags: int = 0) -> bytes:
    return encode_frame(REQUEST, flags, stream, opcode, body)


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_hundreds_at_once_are_all_answered(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, shards=3) as running:
        client = await running.ready()
        queues = [running.queue_of(number) for number in range(3)]
        payloads = {stream: b"%d" % stream * (stream % 50) for stream in range(900)}
        client.write(
            b"".join(
                echo(queues[stream % 3], payload, stream=stream, hold=stream % 2)
                for stream, payload in payloads.items()
            )
        )
        answers = await client.frames(900)
        assert {stream: echoed_in(answer).payload for stream, answer in answers.items()} == payloads
        assert all(echoed_in(answers[stream]).shard == stream % 3 for stream in payloads)


@in_a_loop
async def test_answers_overtake_one_that_is_held(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        # In one write: a node that reads the last of them late would have to hold none.
        said = [echo("q", stream=1, hold=60), echo("q", stream=2, hold=20), echo("q", stream=3)]
        client.write(b"".join(said))
        assert [(await client.frame()).stream for _ in range(3)] == [3, 2, 1]


@in_a_loop
async def test_streams_at_their_ends(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        for stream in (0, 1, 32_767):
            assert echoed_in(await client.ask(echo("q", stream=stream))).payload == b"hello"


# Deadlines


@in_a_loop
async def test_no_time_is_too_little(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        problem = error_in(await client.ask(echo("q", timeout=0)))
        assert problem.code == "deadline-exceeded"
        await client.lives()


@pytest.mark.parametrize("owner", [0, 1])
@in_a_loop
async def test_held_for_longer_than_its_time(owner: int, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        queue = running.queue_of(owner)
        client.write(echo(queue, stream=5, hold=30_000, timeout=30))
        client.write(echo(queue, stream=6, hold=60, timeout=30_000))
        answers = await client.frames(2)  # and nothing after them on either stream
        assert error_in(answers[5]).code == "deadline-exceeded"
        assert echoed_in(answers[6]).payload == b"hello"
        await client.lives()
        assert running.shards[owner].in_flight == 0


@in_a_loop
async def test_what_expired_in_the_queue_is_not_worked_on(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(turn_frames=1)) as running:
        worked_on = []

        def slow(message: Echo) -> Echoed:
            worked_on.append(message.payload)
            ends = time.monotonic() + 0.06
            while time.monotonic() < ends:
                pass
            return Echoed(message.payload, 0)

        running.shard.handlers[Opcode.ECHO] = slow
        client = await running.ready()
        client.write(echo("q", b"first", stream=1) + echo("q", b"second", stream=2, timeout=20))
        client.write(echo("q", b"third", stream=3))
        answers = await client.frames(3)
        assert error_in(answers[2]).code == "deadline-exceeded"
        assert echoed_in(answers[3]).payload == b"third"
        assert worked_on == [b"first", b"third"]


# Taking back


@pytest.mark.parametrize("owner", [0, 1])
@in_a_loop
async def test_a_request_taken_back(owner: int, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        queue = running.queue_of(owner)
        client.write(echo(queue, stream=5, hold=30_000))
        await until(lambda: running.shards[owner].in_flight == 1)
        answer = await client.ask(cancel(5))
        assert error_in(answer).code == "cancelled"
        await until(lambda: running.shards[owner].in_flight == 0)  # the owner was told, too
        # The stream is free again, and nothing old comes on it.
        assert echoed_in(await client.ask(echo(queue, b"new", stream=5))).payload == b"new"
        await client.lives()


@pytest.mark.parametrize("why", ["cancel", "deadline", "leaves"])
@in_a_loop
async def test_work_that_nobody_waits_for_is_stopped(why: str, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        began, stopped = asyncio.Event(), asyncio.Event()

        async def endless(_message: Echo) -> Echoed:
            began.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                stopped.set()
            raise AssertionError("it ended by itself")

        running.shard.handlers[Opcode.ECHO] = endless
        client = await running.ready()
        client.write(echo("q", stream=5, timeout=50 if why == "deadline" else 60_000))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await began.wait()
            if why == "cancel":
                client.write(cancel(5))
            elif why == "leaves":
                client.reset()
            await stopped.wait()


@in_a_loop
async def test_taken_back_in_the_same_breath(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        for owner in (0, 1):
            queue = running.queue_of(owner)
            client.write(echo(queue, stream=5, hold=30_000) + cancel(5) + cancel(5))
            client.write(echo(queue, b"new", stream=5, hold=1))
            assert error_in(await client.frame()).code == "cancelled"
            answer = await client.frame()
            assert (answer.stream, echoed_in(answer).payload) == (5, b"new")
        await client.lives()


@in_a_loop
async def test_taking_back_what_was_answered_is_ignored(tmp_path: Path) -> None:
    async with node(tmp_path, limits=Limits(in_flight=1)) as running:
        client = await running.ready()
        assert echoed_in(await client.ask(echo("q", stream=5))).payload == b"hello"
        client.write(cancel(5) + cancel(6))
        await client.lives()  # with the very next answer
        # Also when no further request would be taken: a second answer could be another's.
        client.write(echo("q", stream=7, hold=30_000))
        await until(lambda: running.shard.in_flight == 1)
        client.write(cancel(5))
        assert error_in(await client.ask(cancel(7))).code == "cancelled"
        await client.lives()


# Out of place


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize(
    "again",
    [
        echo("q", stream=5),
        echo("q", stream=5, flags=0x02),
        options(stream=5),
        register("STATUS_CHANGE", stream=5),
        ours(b"", opcode=0x7F, stream=5),
    ],
    ids=["echo", "flags", "options", "register", "unknown"],
)
@in_a_loop
async def test_a_stream_in_use_cannot_be_used_again(
    owner: int, again: bytes, tmp_path: Path
) -> None:
    """Two answers would be due on it, and nobody could tell which is whose."""
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        client.write(echo(running.queue_of(owner), stream=5, hold=30_000) + again)
        problem = await client.last_words()
        assert problem.code == "protocol-violation"
        assert "Stream 5" in problem.sentence
        await until(lambda: not any(shard.in_flight for shard in running.shards))


@in_a_loop
async def test_our_requests_have_no_flags(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        for flags in (0x01, 0x02, 0x04, 0x80):
            problem = error_in(await client.ask(echo("q", stream=9, flags=flags)))
            assert problem.code == "protocol-violation"
            assert f"{flags:#04x}" in problem.sentence
        await client.lives()


@pytest.mark.parametrize("flags", [0, 0x02])
@pytest.mark.parametrize("stream", [-1, -32_768])
@in_a_loop
async def test_our_requests_have_no_negative_streams(
    stream: int, flags: int, tmp_path: Path
) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        client.write(echo("q", stream=stream, flags=flags))
        answer = await client.frame()
        assert answer.stream == -1  # the last words, and nobody's answer
        assert error_in(answer).code == "protocol-violation"
        await client.ended()


@pytest.mark.parametrize("opcode", [0x43, 0x7F, 0xC0, 0xFF])
@in_a_loop
async def test_unknown_opcodes(opcode: int, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        problem = error_in(await client.ask(ours(b"", opcode=opcode)))
        assert problem.code == "unknown-request"
        assert f"0x{opcode:02x}" in problem.sentence
        await client.lives()


# Bodies


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "protocol-violation"),
        (b"\xc1", "protocol-violation"),
        (b"\xff", "invalid-argument"),  # a number
        (b"\x97\xa1n", "protocol-violation"),
        (b"\xdd\xff\xff\xff\xff", "protocol-violation"),  # four billion elements, says the head
        (b"\x91" * 5000, "invalid-argument"),
        (encode(Echo("n", "q", 1, 0, 1000, b"")) + b"\x00", "protocol-violation"),
        (msgspec.msgpack.encode({}), "invalid-argument"),
        (msgspec.msgpack.encode([]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, 1000]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, 1000, "text"]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, 1000, None]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1.5, 0, 1000, b""]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, -1, b""]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, 86_400_001, b""]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, 1000, b"", 60_001]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, 0, 1000, b"", -1]), "invalid-argument"),
        (msgspec.msgpack.encode(["n", "q", 1, -1, 1000, b""]), "invalid-partition"),
        (msgspec.msgpack.encode(["n", "q", 1, 2**63, 1000, b""]), "invalid-partition"),
        (msgspec.msgpack.encode(["n", "q", -1, 0, 1000, b""]), "invalid-name"),
        (msgspec.msgpack.encode(["n", "q", 2**31, 0, 1000, b""]), "invalid-name"),
        (msgspec.msgpack.encode(["", "q", 1, 0, 1000, b""]), "invalid-name"),
        (msgspec.msgpack.encode(["n", "a:b", 1, 0, 1000, b""]), "invalid-name"),
        (msgspec.msgpack.encode(["n", "/_sys/q/1", 1, 0, 1000, b""]), "invalid-name"),
        (msgspec.msgpack.encode(["n", "a\nb", 1, 0, 1000, b""]), "invalid-name"),
        (msgspec.msgpack.encode(["n", " q", 1, 0, 1000, b""]), "invalid-name"),
        (encode(Echo("n", "q", 1, 0, 1, b""))[:-1] + b"\0" + b"\x91" * 9, "protocol-violation"),
        (b"\x98" + encode(Echo("n", "q", 1, 0, 1, b""))[1:] + b"\x91" * 9999, "protocol-violation"),
        (b"\x96\xa1n\xa1\xff\x01\x00\x01\xc4\x00", "protocol-violation"),  # a name, not UTF-8
        (b"\x96\xa1n\xa3\xed\xa0\x80\x01\x00\x01\xc4\x00", "protocol-violation"),  # half a letter
    ],
)
@in_a_loop
async def test_bodies_that_are_no_message(body: bytes, code: str, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        assert error_in(await client.ask(ours(body, stream=8))).code == code
        await client.lives()


@in_a_loop
async def test_names_at_their_longest(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        for name in ("x" * 255, "\N{SNOWMAN}" * 85):
            assert echoed_in(await client.ask(echo(name))).payload == b"hello"
            assert echoed_in(await client.ask(echo("q", namespace=name))).payload == b"hello"
        for name in ("x" * 256, "\N{SNOWMAN}" * 85 + "x", "x" * 100_000):
            for frame in (echo(name), echo("q", namespace=name)):
                problem = error_in(await client.ask(frame))
                assert problem.code == "invalid-name"
                assert "255" in problem.sentence


@pytest.mark.parametrize("owner", [0, 1])
@in_a_loop
async def test_payloads_at_their_largest(owner: int, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2, limits=Limits(payload_bytes=1000)) as running:
        client = await running.ready()
        queue = running.queue_of(owner)
        for size in (0, 999, 1000):
            assert echoed_in(await client.ask(echo(queue, bytes(size)))).payload == bytes(size)
        for hold in (0, 10):
            problem = error_in(await client.ask(echo(queue, bytes(1001), hold=hold)))
            assert problem.code == "payload-too-large"
            assert "1,001" in problem.sentence
            assert problem.remedy


@pytest.mark.parametrize("owner", [0, 1])
@in_a_loop
async def test_what_a_newer_client_adds_is_skipped(owner: int, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        queue = running.queue_of(owner)
        newer = ["n", queue, 1, 0, 1000, b"payload", 0, {"colour": "red"}, [1, 2], None]
        answer = await client.ask(ours(msgspec.msgpack.encode(newer)))
        assert echoed_in(answer).payload == b"payload"
        # And what an older one leaves out is filled in.
        older = ["n", queue, 1, 0, 1000, b"payload"]
        answer = await client.ask(ours(msgspec.msgpack.encode(older)))
        assert echoed_in(answer).payload == b"payload"


@pytest.mark.parametrize("owner", [0, 1])
@in_a_loop
async def test_the_longest_timeout(owner: int, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        queue = running.queue_of(owner)
        # Many moments: adding a day to a time and taking it away again may leave a bit more.
        client.write(
            b"".join(echo(queue, stream=stream, timeout=86_400_000) for stream in range(500))
        )
        for answer in (await client.frames(500)).values():
            assert echoed_in(answer).payload == b"hello"


@in_a_loop
async def test_errors_are_counted(tmp_path: Path) -> None:
    async with node(tmp_path, shards=2) as running:
        client = await running.ready()
        for owner in (0, 1):
            await client.ask(echo(running.queue_of(owner), timeout=10, hold=1000))
        await client.ask(echo("a:b"))
        seen = status_in(await client.ask(status_frame(0)))
        assert seen.errors == {"deadline-exceeded": 2, "invalid-name": 1}
