"""The gateway logs which requests it refused, by cause."""

from __future__ import annotations

import asyncio

from tests.gateway.fakes import open_door, until
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
