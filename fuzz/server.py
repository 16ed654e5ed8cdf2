"""A shard's connection under arbitrary bytes: it answers every request once, and never stumbles."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from fuzz.parts import FRAME_BYTES, PARTS
from fuzz.quiet_log import QuietLog
from fuzz.reference import cut, frames_of
from fuzz.transport import FakeTransport
from fuzz.violated import require
from maitred.errors import Draining
from maitred.node.connection import NodeConnection
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol.cql import encode_startup
from maitred.protocol.frames import (
    EVENT_STREAM,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    Opcode,
    encode_frame,
)
from maitred.protocol.refusals import decode_error
from maitred.settings import Limits, Node
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.store.interface import Store

_TURN_FRAMES: Final = 3
_IN_FLIGHT: Final = 4
_NO_LIMIT: Final = 2**31 - 1
_MANY_TURNS: Final = 10_000

_SETTINGS: Final = Node(
    limits=Limits(
        frame_bytes=FRAME_BYTES,
        payload_bytes=FRAME_BYTES // 2,
        turn_frames=_TURN_FRAMES,
        in_flight=_IN_FLIGHT,
    )
)
_HANDSHAKE: Final = encode_frame(
    REQUEST,
    0,
    0,
    Opcode.STARTUP,
    encode_startup({"CQL_VERSION": "3.0.0", "MAITRED_VERSION": "1"}),
)


class World:
    """One shard and its loop."""

    def __init__(self, store: Store | None = None) -> None:
        """With a store, the shard serves tasks."""
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[str] = []
        self.log = QuietLog()
        self.shard = self.loop.run_until_complete(self._make(store))

    async def _make(self, store: Store | None) -> Shard:
        place = ShardPlace(UUID(int=1), 0, 1, "192.0.2.2", 4747, (4748,), ())
        surroundings = Surroundings(lambda: 1_000_000.0, Random(1))
        shard = Shard(place, _SETTINGS, surroundings, self.log, vitals=Vitals.none())
        if store is not None:
            shard.keep_tasks(store)
        return shard

    def run(self, pattern: int, data: bytes, turns: int = 1) -> None:
        """One connection, from its first byte to its end."""
        self.loop.run_until_complete(_Run(self, pattern, data, turns).run())

    def close(self) -> None:
        """Nothing of it is left, and nothing of it has failed in the last moment."""
        self.shard.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        require(
            not self.failures and not self.log.problems, f"{self.failures or self.log.problems}"
        )

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


_worlds: list[World] = []


def _world() -> World:
    """One for all inputs: making it costs more than an input."""
    if not _worlds:
        _worlds.append(World())
    return _worlds[0]


def examine_raw(pattern: int, data: bytes) -> None:
    """The bytes as they are, from a stranger or after a handshake."""
    _run(pattern >> 1, _HANDSHAKE + data if pattern & 1 else data)


def examine_requests(pattern: int, data: bytes) -> None:
    """Well-formed frames, chosen and altered by the bytes."""
    _run(pattern, composed(data))


def _run(pattern: int, data: bytes) -> None:
    world = _world()
    try:
        world.run(pattern, data)
    except BaseException:
        # The next input finds a world of its own, not what is left of this one.
        _worlds.clear()
        world.loop.close()
        raise


def composed(data: bytes) -> bytes:
    """A handshake, then three bytes a frame: which one, its stream and flags, and what to alter in
    its body."""
    frames = [_HANDSHAKE]
    for at in range(0, len(data) - 2, 3):
        chosen, where, change = data[at : at + 3]
        opcode, body = PARTS[chosen % len(PARTS)]
        if change and body:
            spot = change % len(body)
            body = body[:spot] + bytes((data[at // 3],)) + body[spot + 1 :]
        stream = where & 0x0F if where < 0xF8 else -1
        flags = (where >> 4) & 0x07 if where & 0xC0 == 0xC0 else 0
        frames.append(encode_frame(REQUEST, flags, stream, opcode, body))
    return b"".join(frames)


class _Run:
    """One connection, from its first byte to its end."""

    def __init__(self, world: World, pattern: int, data: bytes, turns: int) -> None:
        self._world = world
        self._turns = turns
        self._data = data
        self._pieces = cut(data, pattern & 0x3F)
        self._connection = NodeConnection(world.shard)
        self._decoder = self._connection.decoder
        """The first one: a connection that closes frees the bytes it holds, with its decoder."""
        self._transport = FakeTransport(self._connection, peer_reads=not pattern & 0x40)

    async def run(self) -> None:
        world, connection, transport = self._world, self._connection, self._transport
        connection.connection_made(transport)
        for piece in self._pieces:
            await self._until_read()
            connection.data_received(piece)
        await self._until_read()
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self._check_memory()
        refused = connection.closing
        # What is held back is answered now, so that everything has been.
        connection.drain(Draining("The end."))
        self._check_answers(refused=refused)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        shard = world.shard
        require(not shard.connections and not shard.client_connections, "a connection is left")
        require(shard.partial_bytes == 0, f"{shard.partial_bytes} bytes counted for nobody")
        problems = world.failures + world.log.problems + transport.problems
        world.failures, world.log.problems = [], []
        require(not problems, f"{problems}")

    async def _until_read(self) -> None:
        """As a transport does: nothing is delivered while reading is paused."""
        for _ in range(_MANY_TURNS):
            if self._connection.closing:
                return
            if self._transport.reading:
                return
            self._transport.peer_catches_up()
            await asyncio.sleep(0)
        require(False, "it never reads again")  # noqa: FBT003 - that is the point

    def _check_memory(self) -> None:
        connection = self._connection
        if connection.closing:
            return
        waiting = connection.decoder.waiting_bytes
        require(
            waiting <= HEADER_BYTES + connection.decoder.max_body_bytes, "more than one frame held"
        )
        require(self._world.shard.partial_bytes == waiting, "what is held is counted wrongly")
        require(len(connection.under_way) <= _IN_FLIGHT, "more under way than allowed")

    def _check_answers(self, *, refused: bool) -> None:
        written = bytes(self._transport.written)
        answers = frames_of(written, RESPONSE, _NO_LIMIT)
        require(
            sum(HEADER_BYTES + len(answer.body) for answer in answers) == len(written),
            "what was written is no frames",
        )
        for answer in answers:
            if answer.opcode == Opcode.ERROR:
                require(decode_error(answer.body).code != "internal-error", "a fault of ours")
        requests = frames_of(self._data, REQUEST, self._decoder.max_body_bytes)
        last = answers.pop() if refused else None
        require(last is None or last.opcode == Opcode.ERROR, "the last words are no error")
        counted = Counter(answer.stream for answer in answers if answer.stream != EVENT_STREAM)
        surely, perhaps = _expected(requests)
        for stream, count in counted.items():
            require(count <= surely[stream] + perhaps[stream], f"too many answers on {stream}")
        if not refused:
            for stream, count in surely.items():
                require(count <= counted[stream], f"too few answers on {stream}")


def _expected(requests: Sequence[Frame]) -> tuple[Counter[int], Counter[int]]:
    """How many answers there are on each stream, and how many more there may be.

    What CANCEL takes back has its own answer. Only before the handshake has it one itself.
    """
    surely: Counter[int] = Counter()
    perhaps: Counter[int] = Counter()
    shaken = bool(requests) and requests[0].opcode == Opcode.STARTUP and not requests[0].flags
    for request in requests:
        if request.opcode == Opcode.CANCEL and not request.flags:
            perhaps[request.stream] += not shaken or b"MAITRED" not in requests[0].body
        else:
            surely[request.stream] += 1
    return surely, perhaps
