"""Streams over HTTP: three formats, back-pressure, errors in the middle; and callers that leave."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import msgpack

from maitred.client.asked_query import Whole
from maitred.protocol.rows import as_array
from tests.gateway.fakes import get, open_door, query, until


def test_rows_as_lines_as_events_and_as_msgpack() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(query("rows", b"[3]"))
            answer = await caller.answer()
            assert answer.headers["content-type"] == "application/x-ndjson"
            assert answer.headers["maitred-stream"] == "true"
            rows = [[0, "xxxxx"], [1, "xxxxx"], [2, "xxxxx"]]
            assert [json.loads(line) for line in answer.body.splitlines()] == rows
            caller.send(query("rows", b"[2]", "Accept: text/event-stream"))
            answer = await caller.answer()
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.body == (
                b'data: [0,"xxxxx"]\n\ndata: [1,"xxxxx"]\n\nevent: end\ndata: \n\n'
            )
            caller.send(query("rows", b"[3]", "Accept: application/msgpack"))
            answer = await caller.answer()
            assert answer.headers["content-type"] == "application/msgpack"
            assert msgpack.decode(as_array(answer.body)) == rows
            caller.send(query("rows", b"[0]"))  # no rows at all
            assert (await caller.answer()).body == b""
            caller.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("accept", ["*/*", "application/msgpack", "text/event-stream"])
def test_a_stream_that_breaks_is_never_taken_for_complete(accept: str) -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(query("broken", b"[2]", f"Accept: {accept}"))
            assert (await caller.head()).status == 200
            rest = await caller.rest()
            assert not rest.endswith(b"0\r\n\r\n")
            if accept == "*/*":
                last = rest.rstrip(b"\r\n").rpartition(b"\r\n")[2]
                assert json.loads(last)["error"]["code"] == "worker-lost"
            elif accept == "text/event-stream":
                assert b"event: error\n" in rest
                assert b"event: end" not in rest
            caller.close()

    asyncio.run(scenario())


def test_a_slow_reader_stops_the_stream_and_memory_stays_bounded() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(query("endless", b"", "Accept: application/msgpack"))
            await caller.head()
            (running,) = place.asking.asked
            # Nobody reads: what is taken stops growing when every buffer on the way is full.
            taken = -1
            while taken != running.taken_bytes:
                taken = running.taken_bytes
                for _ in range(300):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.1)
            assert taken < 32 * 2**20
            async with asyncio.timeout(30):
                while running.taken_bytes <= taken + 2**20:
                    assert await caller.reader.read(2**18)
            caller.close()
            await until(lambda: place.asking.cancelled == [running], "it is stopped")

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_caller_that_leaves_cancels_its_query(how: str) -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(query("hang"))
            await until(lambda: bool(place.asking.asked), "the query")
            if how == "close":
                caller.close()
            else:
                caller.writer.transport.abort()
            await until(lambda: place.asking.cancelled == place.asking.asked, "it is cancelled")
            assert not place.door.connections

    asyncio.run(scenario())


def test_draining_finishes_what_is_under_way_and_refuses_the_rest() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            idle, busy = await place.dial(), await place.dial()
            idle.send(get("/health"))
            await idle.answer()
            busy.send(query("hang"))
            await until(lambda: bool(place.asking.asked), "the query")
            draining = asyncio.ensure_future(place.gateway.drain(20))
            assert await idle.rest() == b""
            with pytest.raises(OSError, match="Connect call failed"):
                await place.dial()
            busy.send(query("echo", b"[1]"))  # behind the one that is under way
            running = place.asking.asked[0]
            running.finish(Whole(msgpack.encode("done")))
            answer = await busy.answer()
            assert (answer.status, answer.body) == (200, b'"done"')
            assert answer.headers["connection"] == "close"
            assert await draining is True
            for caller in (idle, busy):
                caller.close()

    asyncio.run(scenario())


def test_draining_has_an_end() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            busy = await place.dial()
            busy.send(query("hang"))
            await until(lambda: bool(place.asking.asked), "the query")
            assert await place.gateway.drain(0.1) is False
            await until(lambda: place.asking.cancelled == place.asking.asked, "it is cancelled")
            busy.close()

    asyncio.run(scenario())
