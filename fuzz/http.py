"""A gateway's HTTP connection under arbitrary bytes: typed answers, in order, and nothing is kept.

Behind it stands a gateway without a node. A query is answered by the name of its queue: `echo` at
once, `later` in another turn of the loop, `hang` when the caller has sent everything, `rows` as a
stream, `broken` as one that breaks off. Other queues do not exist.
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fuzz.quiet_log import QuietLog
from fuzz.reference import cut
from fuzz.transport import FakeTransport
from fuzz.violated import Violated, require
from maitred.client.asked_query import Rows, Whole
from maitred.client.enqueue_batches import EnqueuedTask
from maitred.errors import Cancelled, MaitredError, Unauthenticated, UnknownQueue, WorkerLost
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.clock import WaitState
from maitred.gateway.http.connection import HttpConnection
from maitred.gateway.http.listener import HttpListener
from maitred.security.directory import Identity
from maitred.security.permissions import Permissions
from maitred.security.secrets import BLOCK, COST_MIN, HASH_BYTES, LANES, SALT_BYTES, Hashed
from maitred.settings import GatewaySettings, Node, User
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.dispatch.ask import Ask
    from maitred.gateway.http.request import HttpRequest

SECRET: Final = "known"  # noqa: S105 - it opens nothing
"""Of the user alice, who may query in the namespace `default`, and is remembered; `slow` is the
secret of the same user that has to be verified first."""

HASH: Final = str(Hashed(COST_MIN, BLOCK, LANES, bytes(SALT_BYTES), bytes(HASH_BYTES)))
MANY_TURNS: Final = 1_000

HEAD_AND_BODY_BYTES: Final = 2 * 1_024
"""Most that the settings below allow one connection, beside the piece that came last."""

_SETTINGS: Final = GatewaySettings(header_bytes=1_024, body_bytes=1_024, under_way_bytes=100_000)


class _Query:
    """A query, answered by the name of its queue."""

    sequence = 1
    worker = "worker"

    def __init__(self, world: World, ask: Ask) -> None:
        self._world = world
        self._ask = ask
        self._told: Callable[[Whole | Rows | MaitredError], None] | None = None
        self.over = False

    def then(self, told: Callable[[Whole | Rows | MaitredError], None]) -> None:
        self._told = told
        queue = self._ask.queue
        if queue == "echo":
            self.finish(Whole(self._ask.payload))
        elif queue == "hang":
            self._world.hanging.append(self)
        else:
            self._world.loop.call_soon(self._answer)

    def _answer(self) -> None:
        if self._ask.queue == "later":
            self.finish(Whole(self._ask.payload))
        elif not self.over:
            rows = Rows(cast("Any", self), 4_096)
            rows.came(b"\x01\x02")
            self.finish(rows)
            rows.came(b"\xa1x")
            self.over = True
            rows.ended(WorkerLost("Lost.") if self._ask.queue == "broken" else None, at_once=False)

    def finish(self, outcome: Whole | Rows | MaitredError) -> None:
        """Tell what came of it, once."""
        if not self.over and self._told is not None:
            self.over = not isinstance(outcome, Rows)
            self._told(outcome)

    def cancel(self) -> None:
        self.finish(Cancelled("The query was cancelled."))

    def taken(self, size: int) -> None: ...


class _Table:
    under_way = 0
    counts: Final[dict[str, int]] = {}

    def rows(self, _wanted: object = None) -> list[Any]:
        return []


class _Asking:
    """Begins queries."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.table = _Table()

    def begin(self, ask: Ask) -> _Query:
        if ask.queue not in {"echo", "later", "hang", "rows", "broken"}:
            raise UnknownQueue("It does not exist.")
        return _Query(self._world, ask)

    def cancel(self, _sequence: int) -> bool:
        return False

    async def close(self) -> None: ...


class _Authenticator:
    """Knows alice, at once or in another turn of the loop."""

    def __init__(self) -> None:
        permissions = Permissions({"default": ["query"]})
        self._alice = Identity("alice", permissions, "")
        self.outcomes: dict[str, int] = {}
        self.waiting = 0

    def remembered(self, user: str, secret: str) -> Identity | None:
        return self._alice if (user, secret) == ("alice", SECRET) else None

    def certified(self, _shown: object, _now: float) -> Identity | None:
        """Nobody shows a certificate."""

    def refreshed(self, identity: Identity) -> Identity:
        return identity

    async def authenticate(self, user: str, secret: str, _source: object) -> Identity:
        await asyncio.sleep(0)
        if (user, secret) == ("alice", "slow"):
            return self._alice
        raise Unauthenticated("The user is not known, or the secret is wrong.")


class World:
    """One listener without a socket, and its loop."""

    def __init__(self, *, users: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[str] = []
        self.hanging: list[_Query] = []
        self.log = QuietLog()
        self.listener = self.loop.run_until_complete(self._make(users=users))

    async def _make(self, *, users: bool) -> HttpListener:
        known = {"alice": User(secret=HASH, permissions={"default": ["query"]})} if users else {}
        settings = Node(gateway=_SETTINGS, users=known)
        surroundings = Surroundings(lambda: 1_000_000.0, Random(1))
        log = cast("Any", self.log)
        gateway = Gateway("maitred://127.0.0.1:1", settings, surroundings, log)
        gateway.querying = cast("Any", _Asking(self))
        gateway.guard.authenticator = cast("Any", _Authenticator())
        cast("Any", gateway).add = self._add
        listener = HttpListener()
        listener.lead_to(gateway)
        return listener

    async def _add(self, *_arguments: object, **_named: object) -> EnqueuedTask:
        await asyncio.sleep(0)
        return EnqueuedTask(0, 1)

    def run(self, pieces: list[bytes], *, peer_reads: bool) -> list[Exchange]:
        """One connection, from its first byte to its end; its requests and their answers."""
        return self.loop.run_until_complete(_Run(self, pieces, peer_reads=peer_reads).run())

    def close(self) -> None:
        """Leave nothing behind."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def take_problems(self) -> list[str]:
        """Return what has failed since, and forget it."""
        problems = self.failures + self.log.problems
        self.failures, self.log.problems = [], []
        return problems

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


_worlds: Final[dict[bool, World]] = {}

Seen = tuple[bytes, bytes, bytes]
"""Method, target and body of a request."""

UNREADABLE: Final[Seen] = (b"", b"", b"")


class Exchange(NamedTuple):
    """A request, and the status of its answer."""

    seen: Seen
    status: int


def examine_http(pattern: int, data: bytes) -> None:
    """The bytes as they are, in pieces and whole: what is served is the same.

    What is refused may be refused for another reason, and sooner: in pieces, the head of a request
    is looked at before its body.
    """
    users = bool(pattern & 0x80)
    world = _worlds.get(users)
    if world is None:
        world = _worlds[users] = World(users=users)
    try:
        found = world.run(cut(data, pattern & 0x3F), peer_reads=not pattern & 0x40)
        if pattern & 0x3F:
            whole = world.run([data], peer_reads=True)
            for one, other in zip(found, whole, strict=False):
                same = one == other or (one.status >= 400 and other.status >= 400)
                require(same, f"{one} in pieces, and {other} whole")
    except BaseException:
        _worlds.pop(users).close()  # the next input finds a world of its own
        raise


class _Run:
    """One connection, from its first byte to its end."""

    def __init__(self, world: World, pieces: list[bytes], *, peer_reads: bool) -> None:
        self._world = world
        self._pieces = pieces
        self._leaves = bool(pieces and pieces[-1] and pieces[-1][-1] & 1)
        """Whether the caller leaves before its time is over."""
        self._held_most = HEAD_AND_BODY_BYTES + max(map(len, pieces), default=0)
        self._connection = _Watched(world.listener)
        self._transport = FakeTransport(self._connection, peer_reads=peer_reads)

    async def run(self) -> list[Exchange]:
        world, connection, transport = self._world, self._connection, self._transport
        connection.connection_made(transport)
        for piece in self._pieces:
            if not transport.reading:
                await self._until_read()
            if transport.closed:
                break
            connection.data_received(piece)
            self._check_memory()
        await self._until_read()
        await self._settle()
        exchanges = self._check_answers()
        if not self._leaves:
            self._check_clock()
        connection.connection_lost(None)
        await asyncio.sleep(0)
        held = {one.name: one.held for one in world.listener.budgets.all() if one.held}
        require(not held, f"bytes counted for nobody: {held}")
        require(not world.listener.connections, "a connection is left")
        problems = world.take_problems() + transport.problems
        require(not problems, f"{problems}")
        return exchanges

    async def _until_read(self) -> None:
        """As a transport does: nothing is delivered while reading is paused."""
        for _ in range(MANY_TURNS):
            if self._transport.reading or self._transport.closed:
                return
            self._transport.peer_catches_up()
            self._finish_hanging()
            await asyncio.sleep(0)
        raise Violated("it never reads again")

    async def _settle(self) -> None:
        """Let everything that is under way end."""
        for _ in range(MANY_TURNS):
            self._transport.peer_catches_up()
            self._finish_hanging()
            await asyncio.sleep(0)
            if not self._connection.is_busy and self._connection.waits is not WaitState.LOGIN:
                await asyncio.sleep(0)
                return
        raise Violated("a request is never answered")

    def _finish_hanging(self) -> None:
        hanging, self._world.hanging = self._world.hanging, []
        for query in hanging:
            query.finish(Whole(b"\xc0"))

    def _check_memory(self) -> None:
        held = self._connection.held_bytes
        require(held <= self._held_most, f"{held} bytes held")

    def _check_answers(self) -> list[Exchange]:
        connection = self._connection
        require(
            connection.answered == connection.came[: len(connection.answered)],
            "answers in another order than their requests",
        )
        finals = answers_of(
            bytes(self._transport.written), [request.method for request in connection.came]
        )
        ended = len(finals) - len(connection.answered)
        require(ended in {0, 1}, f"{len(finals)} answers to {len(connection.answered)} requests")
        if not ended and not self._transport.closed:
            require(len(connection.answered) == len(connection.came), "a request has no answer")
            require(connection.waits is not WaitState.CLOSE, "it stopped reading without a word")
        if ended:
            require(
                connection.waits in {WaitState.CLOSE, WaitState.CALLER},
                "it goes on after a refusal",
            )
        return [
            Exchange(
                connection.seen[number] if number < len(connection.seen) else UNREADABLE, status
            )
            for number, status in enumerate(finals)
        ]

    def _check_clock(self) -> None:
        """Only time passes; the connection ends all the same."""
        connection, limits = self._connection, self._world.listener.limits
        now = 1_000.0
        for _ in range(len(WaitState) + 1):
            if self._transport.closed:
                return
            connection.look_at_clock(now)
            now += limits[connection.waits] + 1
            connection.look_at_clock(now)
        require(self._transport.closed, f"it waits for {connection.waits} for ever")


class _Watched(HttpConnection):
    """Remembers what came and what was answered."""

    __slots__ = ("answered", "came", "seen")

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self.came: list[HttpRequest] = []
        self.answered: list[HttpRequest] = []
        self.seen: list[Seen] = []

    @property
    def held_bytes(self) -> int:
        """What it keeps of the request that is being read."""
        return len(self._body) + len(self._unread) + self._head_bytes

    def _came(self, request: HttpRequest) -> None:
        self.came.append(request)
        body = request.body if request.method == b"POST" else b""  # others need none
        self.seen.append((request.method, request.target, body))
        super()._came(request)

    def _over(self, request: HttpRequest) -> None:
        self.answered.append(request)
        super()._over(request)


def answers_of(written: bytes, methods: list[bytes]) -> list[int]:
    """Return the statuses of what was written; `Violated` if it is no HTTP, or a fault of ours."""
    found: list[int] = []
    while written:
        head, end, written = written.partition(b"\r\n\r\n")
        require(end, "an answer without the end of its head")
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        require(version == b"HTTP/1.1", f"an answer that begins with {first[:40]!r}")
        status = int(rest[:3])
        if status == 100:
            continue
        headers = dict(line.split(b": ", 1) for line in lines)
        bodiless = len(found) < len(methods) and methods[len(found)] == b"HEAD"
        found.append(status)
        if b"Transfer-Encoding" in headers:
            written = _after_chunks(written)
        elif b"Content-Length" in headers:
            size = 0 if bodiless else int(headers[b"Content-Length"])
            body, written = written[:size], written[size:]
            require(len(body) == size, "an answer that is too short")
            if status >= 400 and body and headers[b"Content-Type"] == b"application/json":
                error = json.loads(body)["error"]
                require(error["code"] != "internal-error", f"a fault of ours: {error}")
                require(error["message"], "an error without a sentence")
        else:
            written = b""  # until the connection closes
    return found


def _after_chunks(written: bytes) -> bytes:
    while written:
        size, _, written = written.partition(b"\r\n")
        count = int(size, 16)
        require(written[count : count + 2] == b"\r\n", "a chunk without its end")
        written = written[count + 2 :]
        if not count:
            break
    return written
