"""A client's connection, under what a node says: every request ends once, with a typed error or an
answer, and nothing large is taken before the handshake is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import uvloop

from fuzz.links import composed
from fuzz.reference import cut
from fuzz.transport import FakeTransport
from fuzz.violated import require
from maitred.client.connection import Connection
from maitred.errors import InvalidArgument, MaitredError
from maitred.protocol import cql
from maitred.protocol.description import Description
from maitred.protocol.frames import (
    ANSWER,
    HANDSHAKE_FRAME_BYTES,
    HEADER_BYTES,
    RESPONSE,
    Opcode,
    encode_frame,
)
from maitred.protocol.messages import (
    Echo,
    Echoed,
    HomeHint,
    decode_answer,
    encode,
    with_home,
    without_home,
)
from maitred.protocol.refusals import encode_error
from maitred.protocol.tasks import Added, Offered, Reserved
from maitred.settings import ClientSettings
from maitred.wire.caller import error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.protocol.frames import Frame

ASKED: Final = (Opcode.ECHO, Opcode.ADD, Opcode.OFFER)
"""What is asked after the handshake, on streams 0, 1 and 2."""

_TURNS: Final = 12


def _said(stream: int, opcode: int, body: bytes) -> bytes:
    return encode_frame(RESPONSE, 0, stream, opcode, body)


_SUPPORTED: Final = cql.encode_supported(
    Description(
        node="6d616974-7265-4000-8000-000000000001",
        shard=0,
        shards=1,
        shard_ports=(4748,),
        frame_bytes=4_096,
        payload_bytes=2_048,
        in_flight=16,
        idle_seconds=300.0,
        spread_batch="0",
        versions=(1,),
        release="0",
    ).supported()
)

HANDSHAKE: Final = (
    _said(0, Opcode.SUPPORTED, _SUPPORTED),
    _said(0, Opcode.READY, b""),
    _said(0, Opcode.READY, b""),
)

NODE_SAYS: Final[tuple[tuple[int, bytes], ...]] = (
    (Opcode.ECHO + ANSWER, encode(Echoed(b"payload", 0))),
    (Opcode.ADD + ANSWER, encode(Added(1))),
    (Opcode.OFFER + ANSWER, encode(Offered([], 10.0, 0, 0.0))),
    (
        Opcode.OFFER + ANSWER,
        encode(Offered([], 10.0, 0, 0.0, None, [Reserved(0, bytes(16), "u", 1.0, 1.0, 1, 1)])),
    ),
    (Opcode.ERROR, encode_error(InvalidArgument("No."))),
    (Opcode.EVENT, cql.encode_draining()),
    (Opcode.SUPPORTED, _SUPPORTED),
    (Opcode.READY, b""),
    (Opcode.AUTHENTICATE, cql.encode_authenticate()),
    (Opcode.ECHO + ANSWER, with_home(HomeHint("node", 1), encode(Echoed(b"payload", 0)))),
)
"""What a node says. New ones come at the end: inputs choose them by number."""


class _Waits:
    """Whoever asked: reads an answer as a client does."""

    def __init__(self, opcode: int) -> None:
        self.ends = 0
        self._opcode = opcode

    def answered(self, frame: Frame) -> None:
        self.ends += 1
        try:
            body = frame.body
            if frame.flags & 0x04:
                _, body = without_home(body)
            if frame.opcode == Opcode.ERROR:
                error_of(frame)
            elif frame.opcode == self._opcode + ANSWER:
                decode_answer(self._opcode, body)
        except MaitredError as problem:
            require(problem.sentence, "an error without a sentence")

    def expired(self) -> None:
        self.ends += 1

    def lost(self, problem: Exception | None) -> None:
        require(problem is None or str(problem), "lost without a word")
        self.ends += 1


class _ClientWorld:
    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[str] = []

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


_worlds: list[_ClientWorld] = []


def examine_client(pattern: int, data: bytes) -> None:
    """What a node says: as it is, or after the handshake, or well-formed frames after that."""
    if pattern & 1 and not pattern & 2:
        data = composed(data, NODE_SAYS, _said)
    if not _worlds:
        _worlds.append(_ClientWorld())
    world = _worlds[0]
    try:
        pieces = cut(data, pattern >> 2 & 0x1F)
        world.loop.run_until_complete(_run(world, pieces, shaken=bool(pattern & 1)))
    except BaseException:
        _worlds.clear()
        world.loop.close()
        raise


async def _run(world: _ClientWorld, pieces: Sequence[bytes], *, shaken: bool) -> None:
    settings = ClientSettings()
    connection = Connection(world.loop, settings)
    transport = FakeTransport(connection, peer_reads=True)
    connection.connection_made(transport)
    shaking = world.loop.create_task(connection.shake_hands(None))
    await asyncio.sleep(0)
    waiting: list[_Waits] = []
    if shaken:
        for answer in HANDSHAKE:
            connection.data_received(answer)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        require(shaking.done() and not shaking.exception(), "a good handshake fails")
        deadline = world.loop.time() + 60.0
        for opcode in ASKED:
            waiting.append(_Waits(opcode))
            body = encode(Echo("n", "q", 1, 0, 1_000, b""))
            connection.ask(opcode, body, waiting[-1], deadline)
    for piece in pieces:
        if connection.closing:
            break
        connection.data_received(piece)
        await asyncio.sleep(0)
        if not shaking.done():
            held = connection.decoder.waiting_bytes
            most = HEADER_BYTES + max(HANDSHAKE_FRAME_BYTES, len(piece))
            require(held <= most, "too much is held before READY")
            require(
                connection.decoder.max_body_bytes == HANDSHAKE_FRAME_BYTES, "the limit was raised"
            )
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    if not connection.closing:
        connection.connection_lost(None)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    require(shaking.done(), "the handshake never ends")
    problem = shaking.exception()
    require(problem is None or isinstance(problem, MaitredError | OSError), f"a fault: {problem!r}")
    for one in waiting:
        require(one.ends == 1, f"a request ended {one.ends} times")
    if connection._heartbeat is not None:  # noqa: SLF001
        connection._heartbeat.cancel()  # noqa: SLF001
    problems = world.failures + transport.problems
    world.failures = []
    require(not problems, f"{problems}")
