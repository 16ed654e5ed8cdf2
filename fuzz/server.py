"""A shard's connection under arbitrary bytes: it answers every request once, and never stumbles."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from fuzz.reference import cut, frames_of
from fuzz.transport import FakeTransport
from fuzz.violated import require
from maitred.errors import Draining
from maitred.node.connection import Connection
from maitred.node.shard import Place, Shard
from maitred.node.vitals import Vitals
from maitred.protocol.cql import encode_query, encode_register, encode_startup
from maitred.protocol.frames import (
    EVENT_STREAM,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    Opcode,
    encode_frame,
)
from maitred.protocol.messages import Echo, Status, encode
from maitred.protocol.refusals import decode_error
from maitred.protocol.tasks import (
    Add,
    Await,
    Counts,
    DeadLetters,
    Describe,
    End,
    Finish,
    Forward,
    Heartbeat,
    Offer,
    Queues,
    Resize,
    Revoke,
    Sync,
)
from maitred.settings import Limits, Node
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAME_BYTES: Final = 4_096
_TURN_FRAMES: Final = 3
_IN_FLIGHT: Final = 4
_NO_LIMIT: Final = 2**31 - 1
_MANY_TURNS: Final = 10_000

_SETTINGS: Final = Node(
    limits=Limits(
        frame_bytes=_FRAME_BYTES,
        payload_bytes=_FRAME_BYTES // 2,
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

PARTS: Final[tuple[tuple[int, bytes], ...]] = (
    (Opcode.OPTIONS, b""),
    (Opcode.STARTUP, encode_startup({"CQL_VERSION": "3.0.0"})),
    (Opcode.REGISTER, encode_register(["STATUS_CHANGE", "MAITRED_DRAINING"])),
    (Opcode.QUERY, encode_query("SELECT * FROM system.local WHERE key='local'")),
    (Opcode.QUERY, encode_query("SELECT peer, rack FROM system.peers")),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 0, 1_000, b"payload"))),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 7, 1_000, b"held", 900))),
    (Opcode.ECHO, encode(Echo("n:", "q", 1, 7, 1_000, b"no name"))),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 7, 0, b"no time"))),
    (Opcode.ECHO, encode(Echo("n", "q", 1, 7, 1, b"x" * (_FRAME_BYTES // 2 + 1)))),
    (Opcode.STATUS, encode(Status(0, 1_000))),
    (Opcode.STATUS, encode(Status(9, 1_000))),
    (Opcode.CANCEL, b""),
    (Opcode.CANCEL, b""),
    (Opcode.AUTH_RESPONSE, b"\0\0\0\x04\0u\0s"),
    (0x55, b""),
    # Tasks. The last two are for shards only.
    *(
        (message.opcode, encode(message))
        for message in (
            Add("n", "q", 1, 0, 1_000, 0, [b"one", b"two"]),
            Await("n", "q", 1, 0, 1_000, 2**32),
            Revoke("n", "q", 1, 0, 1_000, 2**32),
            Offer("n", "q", 1, 0, 900, 0, bytes(16), "worker", 2),
            Finish("n", "q", 1, 0, 1_000, bytes(16), [End(2**32, 1)]),
            Heartbeat("n", "q", 1, 0, 900, bytes(16), "worker", [(2**32, 1)]),
            Describe("n", "q", 1, 0, 1_000),
            Resize("n", "q", 1, 0, 1_000, 4, 2),
            DeadLetters("n", "q", 1, 0, 1_000, "list"),
            Queues(0, 1_000),
            Forward("n", "q", 1, 0, 1_000, 0, 1, 2**32, 1, 2, 0.0, b"payload", 0.0),
            Sync("n", "q", 1, 1, 1_000, Counts(4, 2, 1)),
        )
    ),
)


class _Log:
    """A log in which nothing may be said that a person would be woken up for."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def debug(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def info(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> None: ...  # noqa: ANN401

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self.problems.append(f"{event}: {fields.get('exc_info')!r}")

    exception = error

    def bind(self, **_fields: Any) -> _Log:  # noqa: ANN401
        return self


class _World:
    """One shard and one loop for all inputs: making them costs more than an input."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[str] = []
        self.log = _Log()
        self.shard = self.loop.run_until_complete(self._make())

    async def _make(self) -> Shard:
        place = Place(UUID(int=1), 0, 1, "192.0.2.2", 4747, (4748,), ())
        surroundings = Surroundings(lambda: 1_000_000.0, Random(1))
        return Shard(place, _SETTINGS, surroundings, self.log, vitals=Vitals.none())

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


_worlds: list[_World] = []


def _world() -> _World:
    if not _worlds:
        _worlds.append(_World())
    return _worlds[0]


def examine_raw(pattern: int, data: bytes) -> None:
    """The bytes as they are, from a stranger or after a handshake."""
    _run(pattern >> 1, _HANDSHAKE + data if pattern & 1 else data)


def examine_requests(pattern: int, data: bytes) -> None:
    """Well-formed frames, chosen and altered by the bytes."""
    _run(pattern, _HANDSHAKE + _composed(data))


def _run(pattern: int, data: bytes) -> None:
    world = _world()
    try:
        world.loop.run_until_complete(_Run(world, pattern, data).run())
    except BaseException:
        # The next input finds a world of its own, not what is left of this one.
        _worlds.clear()
        world.loop.close()
        raise


def _composed(data: bytes) -> bytes:
    """Three bytes a frame: which one, its stream and flags, and what to alter in its body."""
    frames = []
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

    def __init__(self, world: _World, pattern: int, data: bytes) -> None:
        self._world = world
        self._data = data
        self._pieces = cut(data, pattern & 0x3F)
        self._connection = Connection(world.shard)
        self._transport = FakeTransport(self._connection, peer_reads=not pattern & 0x40)

    async def run(self) -> None:
        world, connection, transport = self._world, self._connection, self._transport
        connection.connection_made(transport)
        for piece in self._pieces:
            await self._until_read()
            connection.data_received(piece)
        await self._until_read()
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
        requests = frames_of(self._data, REQUEST, self._connection.decoder.max_body_bytes)
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
