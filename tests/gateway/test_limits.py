"""What the HTTP API takes at most: headers, bodies, time, connections, memory."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import TYPE_CHECKING

import pytest

from maitred.gateway.http import connection
from tests.gateway.fakes import Caller, get, open_door, post, query, until

if TYPE_CHECKING:
    from collections.abc import Iterator


EXPECT = "Expect: 100-continue"
ECHO = "/v1/default/queues/echo/query"


def test_too_many_headers() -> None:
    async def scenario() -> None:
        async with open_door(header_bytes=1024) as place:
            for request in (
                get("/health", "X: " + "x" * 2000),
                get("/" + "x" * 2000),
                get("/health", *[f"X{number}: {'x' * 20}" for number in range(100)]),
                b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000,  # and no end
            ):
                caller = await place.dial()
                caller.send(request)
                answer = await caller.answer()
                assert answer.status == 431
                assert answer.headers["connection"] == "close"
                assert json.loads(answer.body)["error"]["code"] == "headers-too-large"
                caller.close()

    asyncio.run(scenario())


def test_too_many_headers_bit_by_bit() -> None:
    async def scenario() -> None:
        async with open_door(header_bytes=1024) as place:
            caller = await place.dial()
            caller.send(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(20):
                caller.send(b"x" * 100)
                await caller.writer.drain()
                await asyncio.sleep(0)
            assert (await caller.answer()).status == 431
            caller.close()

    asyncio.run(scenario())


def test_a_large_body_is_refused_before_it_is_read() -> None:
    async def scenario() -> None:
        async with open_door(body_bytes=2048) as place:
            caller = await place.dial()
            caller.send(post(ECHO, b"", "Content-Length: 9999999999", length=False))
            assert (await caller.answer()).status == 413
            caller.close()
            caller = await place.dial()
            caller.send(
                post(
                    ECHO,
                    b"",
                    "Content-Length: 5000",
                    "Expect: 100-continue",
                    length=False,
                )
            )
            assert (await caller.head()).status == 413  # instead of 100
            caller.close()
            caller = await place.dial()
            head = post(ECHO, b"", "Transfer-Encoding: chunked", length=False)
            caller.send(head + b"400\r\n" + b"x" * 1024 + b"\r\n")
            caller.send((b"400\r\n" + b"x" * 1024 + b"\r\n") * 10)
            assert (await caller.answer()).status == 413
            caller.close()
            caller = await place.dial()
            caller.send(query("echo", b'["%b"]' % (b"x" * 2000)))
            assert (await caller.answer()).status == 200
            caller.close()

    asyncio.run(scenario())  # fmt: skip


def test_a_refusal_waits_for_the_answers_before_it() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(query("echo", b"[1]") + b"garbage\r\n\r\n")
            assert (await caller.answer()).body == b"1"
            assert (await caller.answer()).status == 400
            assert await caller.rest() == b""
            caller.close()

    asyncio.run(scenario())


def test_slow_headers_slow_bodies_and_idle_connections_are_closed() -> None:
    async def scenario() -> None:
        async with open_door(header_seconds=0.2, body_seconds=0.2, idle_seconds=0.4) as place:
            slow = await place.dial()
            slow.send(b"GET /health HT")
            assert (await slow.answer()).status == 408
            assert await slow.rest() == b""
            halved = await place.dial()
            halved.send(query("echo", b"[1, 2, 3]")[:-4])
            assert (await halved.answer()).status == 408
            idle = await place.dial()
            idle.send(get("/health"))
            assert (await idle.answer()).status == 200
            assert await idle.rest() == b""
            busy = await place.dial()
            busy.send(query("hang"))
            await until(lambda: bool(place.asking.asked), "the query")
            silent = await place.dial()
            assert await silent.rest() == b""  # while the busy one stays
            assert not place.asking.cancelled
            for caller in (slow, halved, idle, busy, silent):
                caller.close()

    asyncio.run(scenario())


def test_more_connections_than_allowed_are_told_so() -> None:
    async def scenario() -> None:
        async with open_door(connections=2) as place:
            callers = [await place.dial() for _ in range(2)]
            for caller in callers:
                caller.send(get("/health"))
                assert (await caller.answer()).status == 200
            third = await place.dial()
            answer = await third.answer()
            assert answer.status == 503
            assert json.loads(answer.body)["error"]["code"] == "too-many-connections"
            for caller in (*callers, third):
                caller.close()

    asyncio.run(scenario())


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.skip(f"ONLY {hard} FILES HERE: 1,024 connections were not tried")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_1024_connections_at_once() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            callers: list[Caller] = []
            for _ in range(16):
                callers += await asyncio.gather(*(place.dial() for _ in range(64)))
            await until(lambda: len(place.door.connections) == 1024, "all are there")
            for number, caller in enumerate(callers):
                caller.send(query("echo", b"[%d]" % number))
            answers = await asyncio.gather(*(caller.answer() for caller in callers))
            assert [answer.body for answer in answers] == [b"%d" % n for n in range(1024)]
            for caller in callers:
                caller.close()
            await until(lambda: not place.door.connections, "all are gone")

    asyncio.run(scenario())


def test_a_caller_that_sends_and_never_reads_stops_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "WRITE_HIGH_BYTES", 32 * 1024)

    async def scenario() -> None:
        async with open_door(body_seconds=0.5) as place:
            caller = await place.dial()
            request = query("echo", b'["%b"]' % (b"x" * 100_000))
            # The caller's transport takes what the kernel does not; how much the door takes counts.
            for _ in range(300):
                caller.send(request)
            await until(lambda: bool(place.asking.asked), "the first query")
            await until(lambda: not place.door.connections, "it is cut off")
            assert len(place.asking.asked) < 200
            caller.writer.transport.abort()

    asyncio.run(scenario())
