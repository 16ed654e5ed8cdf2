"""The gateway logs which requests it refused, by cause."""

from __future__ import annotations

import asyncio

from tests.gateway.fakes import open_door, query, until
from tests.node.in_process import in_a_loop


@in_a_loop
async def test_refused_requests_are_one_line_for_each_cause() -> None:
    async with open_door() as opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
        unknown = b"GET /nowhere-secret HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        writer.write(unknown * 3)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")

        def told() -> list[dict[str, object]]:
            return [fields for event, fields in opened.lines if event == "requests refused"]

        await until(lambda: sum(int(str(one["requests"])) for one in told()) == 3, "the line", 60)
        assert {one["code"] for one in told()} == {"unknown-route"}
        assert "nowhere-secret" not in str(told())
        writer.close()


@in_a_loop
async def test_codes_of_other_processes_that_are_unknown_are_counted_together() -> None:
    """A worker can make up codes of 64 KB without end."""
    async with open_door() as opened:
        caller = await opened.dial()
        caller.send(query("later"))
        answer = await caller.answer()
        assert b"made-up-1" in answer.body  # its caller is told
        caller.send(query("broken-later", b"[1]"))
        assert b"made-up-2" in await caller.rest()
        assert opened.door.refused == {"other": 2}
        caller.close()
