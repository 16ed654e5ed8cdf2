"""grpc.aio: a unary call that carries raw bytes, so that no time goes into protobuf."""

from __future__ import annotations

import sys
from typing import Any

import grpc
import uvloop

from benchmarks.queries.asking import PAYLOAD, Client, run

BYTES = PAYLOAD.encode()


async def echo(request: bytes, _context: Any) -> bytes:  # noqa: ANN401 - grpc has no types
    return request


async def serve(port: int) -> None:
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    service = grpc.method_handlers_generic_handler("bench.Echo", {"Echo": method})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


class Grpc(Client):
    async def open(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._echo = self._channel.unary_unary("/bench.Echo/Echo")

    async def ask(self) -> None:
        assert len(await self._echo(BYTES)) == len(BYTES)

    async def close(self) -> None:
        await self._channel.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        run(Grpc())
