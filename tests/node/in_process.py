"""A node in this process: its shards share one loop, and everything between them is real.

Real sockets, real files, real time. What a test must not do is sleep until something has probably
happened: it awaits what it wants to see, and every wait has a bound.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import uvloop

from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.protocol.messages import Echo, Echoed
from maitred.security.audit_log import audit_log
from maitred.settings import Limits, Node, Tls
from maitred.surroundings import Surroundings
from tests.node.raw import PATIENCE_SECONDS, RawClient

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from maitred.telemetry.tracing import Tracing

NODE = UUID("6d616974-7265-4000-8000-000000000001")

GATEWAY_SECRET = "known-to-the-gateway"  # noqa: S105 - of a node in a test

GATED = 1
"""Milliseconds, for an echo that is held until the test lets it go (`NodeUnderTest.hold_until`):
how many of them something takes on a busy machine, nobody knows."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(main: Coroutine[Any, Any, None], loop: str = "uvloop") -> None:
    """Run it, and fail if anything was left to the loop's last resort."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        runner.run(main)
    assert not unhandled, unhandled


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine; one that takes `loop` is told which."""

    @functools.wraps(test)
    def running(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - whatever pytest gives it
        run(test(*arguments, **named), named.get("loop", "uvloop"))

    return running


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Until the condition holds; fails if it never does."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never happened"
        await asyncio.sleep(0.001)


def instances(kind: type) -> int:
    """How many objects of this class exist, those that only the garbage collector would free too;
    of a class whose objects it looks after."""
    return sum(type(one) is kind for one in gc.get_objects())


def own_seconds() -> float:
    """A clock that stands while this thread could run and other processes do instead.

    For bounds on what a node makes others wait: a crowded machine is not its fault. Where the
    system does not tell, it is a clock like others.
    """
    try:
        kept = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        kept = 0.0
    return time.monotonic() - kept


class Portions:
    """Counts pieces of work between two turns of other work on the running loop, by no clock."""

    def __init__(self) -> None:
        self.longest = 0
        """The most pieces that other work had to wait for."""
        self._done = 0
        self._loop = asyncio.get_running_loop()
        self._others_have_their_turn()

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of which is a piece of work."""

        @functools.wraps(function)
        def counting(*given: Any) -> Any:  # noqa: ANN401 - whatever it is given
            self._done += 1
            return function(*given)

        return counting

    def _others_have_their_turn(self) -> None:
        self.longest, self._done = max(self.longest, self._done), 0
        self._loop.call_soon(self._others_have_their_turn)


class RecordedLog:
    """Keeps what a shard says."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def events(self, level: str) -> list[str]:
        return [event for seen, event, _ in self.lines if seen == level]

    def debug(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - as Logger has it
        self.lines.append(("debug", event, fields))

    def info(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self.lines.append(("error", event, fields))

    def exception(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        self.lines.append(("error", event, fields))

    def bind(self, **_fields: Any) -> RecordedLog:  # noqa: ANN401
        return self


class NodeUnderTest:
    """Some shards of one node, and ways to reach and to hurt them."""

    def __init__(
        self,
        directory: Path,
        settings: Node,
        shards: int,
        tls: ssl.SSLContext | None,
        client_tls: ssl.SSLContext | None,
        *,
        identity: UUID = NODE,
        member: str = "",
        cluster_secret: str = "",
        peer_tls: Callable[[], ssl.SSLContext] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self._tracing = tracing
        self.identity = identity
        self.member = member
        self._cluster_secret = cluster_secret
        self._peer_tls = peer_tls
        self.log = RecordedLog()
        self._tls = tls
        self._client_tls = client_tls
        self._held = [held_port() for _ in range(shards + 1)]
        ports = [held.getsockname()[1] for held in self._held]
        self.port: int = ports[0]
        self.own_ports: tuple[int, ...] = tuple(ports[1:])
        self.peer_paths = (
            tuple(str(directory / str(number)) for number in range(shards)) if shards > 1 else ()
        )
        self.shards: list[Shard] = [self._make(number) for number in range(shards)]
        self._clients: list[RawClient] = []

    def _make(self, number: int, restarts: int = 0) -> Shard:
        place = ShardPlace(
            node=self.identity,
            number=number,
            shards=len(self.own_ports),
            host="127.0.0.1",
            port=self.port,
            own_ports=self.own_ports,
            peer_paths=self.peer_paths,
            restarts=restarts,
            gateway_secret=GATEWAY_SECRET,
            member=self.member,
            cluster_secret=self._cluster_secret,
        )
        audit = None
        if self.settings.audit.directory is not None:  # where a test looks for it
            audit = audit_log(self.settings, f"shard-{number}", self.log, time.time)
        around = Surroundings.real(self._tracing)
        return Shard(
            place,
            self.settings,
            around,
            self.log,
            tls=self._tls,
            audit=audit,
            peer_tls=self._peer_tls,
        )

    @property
    def shard(self) -> Shard:
        """The first, for tests that need one."""
        return self.shards[0]

    async def open(self, number: int = 0, *, receive_buffer_bytes: int | None = None) -> RawClient:
        """Connect to the shard's own port, and say nothing yet."""
        client = await RawClient.open(
            self.own_ports[number],
            tls=self._client_tls,
            receive_buffer_bytes=receive_buffer_bytes,
        )
        self._clients.append(client)
        return client

    async def ready(
        self,
        number: int = 0,
        user: str | None = None,
        secret: str = "",
        *,
        receive_buffer_bytes: int | None = None,
    ) -> RawClient:
        """Connect, with the handshake done."""
        client = await self.open(number, receive_buffer_bytes=receive_buffer_bytes)
        return await client.handshake(user, secret)

    def queue_of(self, number: int, namespace: str = "n") -> str:
        """A queue whose root partition belongs to that shard."""
        return next(
            name
            for name in (f"q{attempt}" for attempt in range(10_000))
            if self.shard.owner_of(Echo(namespace, name, 1, 0, 0, b"")) == number
        )

    def hold_until(self, may_go: Callable[[], Awaitable[object]]) -> None:
        """Echoes with `hold=GATED` are held until what this makes has come, however late."""

        def holding(shard: Shard) -> Callable[[Echo], Coroutine[Any, Any, Echoed]]:
            by_the_clock = shard.own_requests._echo_later

            async def answer(message: Echo) -> Echoed:
                if message.hold_milliseconds != GATED:
                    return await by_the_clock(message)
                await may_go()
                return Echoed(message.payload, shard.number)

            return answer

        for shard in self.shards:
            shard.own_requests._echo_later = holding(shard)  # type: ignore[method-assign,assignment]

    def kill(self, number: int) -> None:
        """As if its process were gone: nothing listens, every connection is cut."""
        self.shards[number].close()

    async def start_again(self, number: int) -> Shard:
        """A new one in its place."""
        self.shards[number] = shard = self._make(number, restarts=1)
        await shard.start()
        return shard

    async def close(self) -> None:
        for client in self._clients:
            client.reset()
        for shard in self.shards:
            shard.close()
        await until(lambda: not any(shard.connections for shard in self.shards))
        for held in self._held:
            held.close()
        # What was closed is told so in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)


def held_port() -> socket.socket:
    """A bound socket that never listens: its port stays ours, and shards may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


@asynccontextmanager
async def node(
    directory: Path,
    *,
    shards: int = 1,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    tls_settings: Tls | None = None,
    of_cluster: dict[str, Any] | None = None,
    tracing: Tracing | None = None,
    **settings: Any,  # noqa: ANN401 - whatever a node has
) -> AsyncIterator[NodeUnderTest]:
    """A running node. Afterwards nothing may be left of any request, and no fault of ours."""
    whole = Node(limits=limits or Limits(), tls=tls_settings, **settings)
    made = NodeUnderTest(
        directory, whole, shards, tls, client_tls, tracing=tracing, **(of_cluster or {})
    )
    try:
        for shard in made.shards:
            await shard.start()
        yield made
    finally:
        await made.close()
    for shard in made.shards:
        assert shard.in_flight == 0
        assert shard.client_connections == 0
        assert shard.partial_bytes == shard.strangers_bytes == 0
        assert shard.under_way_bytes == 0
        assert shard.unsent_bytes == 0
    assert "background task failed" not in made.log.events("error")
