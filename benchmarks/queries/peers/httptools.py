"""The least that an HTTP server can be: httptools on uvloop, the same bytes to every request.

`python -m` this: PORT, and the file with the whole answer, headers and all.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import httptools
import uvloop


class Server(asyncio.Protocol):
    answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._body.clear()
        self._transport.write(self.answer)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    Server.answer = Path(sys.argv[2]).read_bytes()
    uvloop.run(serve(int(sys.argv[1])))
