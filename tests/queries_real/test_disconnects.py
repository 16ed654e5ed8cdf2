"""Every disconnect that docs/queries.md defines, with real processes and real sockets, through both
doors: a client that is its own gateway, and HTTP.

In all of them: one answer, no slot given twice, none lost. Nothing here waits for time to pass; it
waits for what a handler wrote down, or for what the node says of its queue, with a bound.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import pytest

import maitred
from maitred.client.query_gateway import QueryGateway
from maitred.errors import ConnectionLost, MaitredError, Unavailable, UnknownQueue
from maitred.protocol.tasks import Describe
from maitred.routing.names import TASKS
from maitred.settings import Querying as Settings
from maitred.surroundings import Surroundings
from tests.cli.running import MAITRED
from tests.cli.running import maitred as maitred_command
from tests.client.nodes import QUICK
from tests.gateway.test_processes import call, standing_alone
from tests.node.nodes import wait_until
from tests.queries_real.kitchen import app
from tests.tasks.stage import READY, Child, Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import PartitionDescription
    from tests.cli.forks import Forked

PATIENCE_SECONDS = 20
GRACE_SECONDS = 1.0
SETTINGS = f"""
[queues."*"]
partitions = 1

[queues."*".queries]
no_worker_seconds = {GRACE_SECONDS}

[restarts]
first_seconds = 0.05
"""
QUICKLY = {"ping_seconds": 0.2, "hung_seconds": 0.6}
"""How gateways here find out who hangs."""

DOORS = ("native", "http")


class Told(NamedTuple):
    """What came of a query: a result or the code of an error."""

    result: object = None
    code: str = ""
    rows: tuple[object, ...] = ()
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Asked:
    """A query that was asked; whoever did may leave."""

    def __init__(self, task: asyncio.Task[Told], leave: Callable[[], object]) -> None:
        self.task = task
        self.leave = leave

    async def told(self, seconds: float = PATIENCE_SECONDS) -> Told:
        async with asyncio.timeout(seconds):
            return await self.task


class Asker(Protocol):
    """A door."""

    def ask(
        self,
        queue: str,
        *arguments: object,
        timeout: float = 60,
        idempotent: bool = False,
        rows: bool = False,
    ) -> Asked: ...


class Native:
    """A client that is its own gateway."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    def ask(
        self,
        queue: str,
        *arguments: object,
        timeout: float = 60,
        idempotent: bool = False,
        rows: bool = False,
    ) -> Asked:
        asking = self._stream if rows else self._whole
        wishes = {"timeout": timeout, "idempotent": idempotent, "namespace": "kitchen"}
        task = asyncio.create_task(asking(queue, arguments, wishes))
        return Asked(task, task.cancel)

    async def _whole(self, queue: str, arguments: Any, wishes: Any) -> Told:  # noqa: ANN401
        try:
            return Told(await self.client.query(queue, *arguments, **wishes))
        except MaitredError as problem:
            return Told(code=problem.code)

    async def _stream(self, queue: str, arguments: Any, wishes: Any) -> Told:  # noqa: ANN401
        got: list[object] = []
        try:
            async with self.client.stream(queue, *arguments, **wishes) as stream:
                async for row in stream:
                    got.append(row)  # noqa: PERF401 - those before an error count
        except MaitredError as problem:
            return Told(code=problem.code, rows=tuple(got))
        return Told(rows=tuple(got))


class Http:
    """A connection for each query."""

    def __init__(self, base: str) -> None:
        self.base = urlsplit(base)

    def ask(
        self,
        queue: str,
        *arguments: object,
        timeout: float = 60,
        idempotent: bool = False,
        rows: bool = False,
    ) -> Asked:
        made = socket.create_connection((str(self.base.hostname), int(self.base.port or 0)))
        body = json.dumps(arguments)
        accept = "application/x-ndjson" if rows else "application/json"
        made.sendall(
            f"POST /v1/kitchen/queues/{queue}/query HTTP/1.1\r\n"
            f"Host: {self.base.netloc}\r\nAccept: {accept}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Maitred-Timeout: {timeout}\r\nMaitred-Idempotent: {str(idempotent).lower()}\r\n"
            f"Connection: close\r\n\r\n{body}".encode()
        )
        made.setblocking(False)  # noqa: FBT003 - its name says it

        def leave() -> None:
            # As a process that is killed: whatever is unread, the other end hears of it.
            if task.done():
                return
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            task.cancel()

        task = asyncio.create_task(self._read(made))
        # One that is cancelled before it began closes nothing by itself.
        task.add_done_callback(lambda _: made.close())
        return Asked(task, leave)

    async def _read(self, made: socket.socket) -> Told:
        loop = asyncio.get_running_loop()
        data = b""
        with made:
            try:
                while piece := await loop.sock_recv(made, 65536):
                    data += piece
            except ConnectionResetError:
                return Told(code="reset")
        if not data:
            return Told(code="closed")
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        if "transfer-encoding" in headers:
            return self._rows(body, headers)
        said = json.loads(body)
        if first.split()[1] == "200":
            return Told(said, headers=headers)
        return Told(code=said["error"]["code"], headers=headers)

    def _rows(self, body: bytes, headers: dict[str, str]) -> Told:
        text, whole = b"", False
        while body:
            size, _, body = body.partition(b"\r\n")
            whole = int(size, 16) == 0
            text, body = text + body[: int(size, 16)], body[int(size, 16) + 2 :]
        got = [json.loads(line) for line in text.splitlines()]
        if whole:
            return Told(rows=tuple(got), headers=headers)
        return Told(code=got[-1]["error"]["code"], rows=tuple(got[:-1]), headers=headers)


class Kitchen:
    """A node, and all that a test needs around it."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self.stage = stage
        self.directory = directory
        self._numbers = iter(range(1, 1_000_000))
        self._workers: list[Child] = []
        self.watcher: AsyncClient = cast("AsyncClient", None)

    def number(self) -> int:
        """Of a query: no other has it."""
        return next(self._numbers)

    def gate(self) -> Path:
        return self.directory / f"gate-{self.number()}"

    def worker(self, *options: str) -> Child:
        """One that is ready."""
        command = [str(MAITRED), "worker", "tests.queries_real.kitchen:app"]
        child = self.stage._started([*command, "--log-format", "json", *options])
        self._workers.append(child)
        child.errors.wait_for(READY)
        return child

    def leave(self) -> None:
        """Nobody serves any more."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    async def another(self, *options: str) -> Child:
        return await asyncio.to_thread(self.worker, *options)

    async def order(self, *what: str) -> None:
        """What a person wants of the worker `first`."""
        done = await asyncio.to_thread(
            maitred_command, "admin", "worker", what[0], "first", "--url", self.stage.url, *what[1:]
        )
        assert done.returncode == 0, done.stderr

    # What happened

    def count(self, what: str, number: int) -> int:
        return self.stage.journal.numbers(what).count(number)

    async def wait(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition():  # noqa: ASYNC110 - other processes tell nobody
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"waited in vain: {what}") from None

    async def begun(self, number: int, times: int = 1) -> None:
        await self.wait(lambda: self.count("began", number) >= times, f"{number} begins")
        assert self.count("began", number) == times

    async def stopped(self, number: int) -> None:
        await self.wait(lambda: self.count("cancelled", number), f"{number} is stopped")

    # What the node knows

    async def _described(self, queue: str) -> PartitionDescription | None:
        """None: the shard does not know the queue yet, or is not back yet."""
        try:
            found = await self.watcher.request(Describe("kitchen", queue, TASKS, 0, 0))
        except (UnknownQueue, Unavailable, ConnectionLost):
            return None
        return cast("PartitionDescription", found)

    async def _node_says(
        self, queue: str, condition: Callable[[PartitionDescription], bool], what: str
    ) -> None:
        found = None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    found = await self._described(queue)
                    if found is not None and condition(found):
                        return
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"waited in vain: {what}: {found}") from None

    async def waiting(self, queue: str, count: int) -> None:
        """So many queries wait at the node."""
        what = f"{count} queries wait for {queue}"
        await self._node_says(queue, lambda one: one.queries_waiting == count, what)

    async def offered(self, queue: str) -> None:
        """Somebody has a free slot."""
        await self._node_says(queue, lambda one: one.offers > 0, f"a slot is on offer for {queue}")

    async def all_taken(self, queue: str) -> None:
        """Nobody has one."""
        await self._node_says(queue, lambda one: not one.offers, f"no slot is left for {queue}")

    async def has_slots(self, asker: Asker, slots: int) -> None:
        """There are so many, and not one more: so many run, and another one waits."""
        gate = self.gate()
        numbers = [self.number() for _ in range(slots + 1)]
        asked = [asker.ask("gated", number, str(gate)) for number in numbers]

        def begun() -> int:
            return sum(self.count("began", number) for number in numbers)

        await self.wait(lambda: begun() == slots, f"{slots} run")
        await self.waiting("gated", 1)
        await self.all_taken("gated")
        assert begun() == slots
        gate.touch()
        assert [(await one.told()).result for one in asked] == numbers
        assert [self.count("began", number) for number in numbers] == [1] * len(numbers)

    async def served(self) -> None:
        """Every queue is known, and there is a worker for it."""
        for handler in app.handlers.values():
            await self.offered(handler.queue)

    # Doors

    @asynccontextmanager
    async def door(self, name: str, **settings: Any) -> AsyncIterator[Asker]:  # noqa: ANN401
        settings = {**QUICKLY, **settings}
        async with AsyncExitStack() as stack:
            if name == "native":
                yield await self.native(stack, **settings)
            else:
                yield (await self.http(stack, **settings))[0]

    async def native(self, stack: AsyncExitStack, **settings: Any) -> Native:  # noqa: ANN401
        client = await stack.enter_async_context(maitred.connect(self.stage.url, **QUICK))
        client.ask_with(QueryGateway(client, Settings(**settings), Surroundings.real()))
        return Native(client)

    async def http(
        self,
        stack: AsyncExitStack,
        **settings: Any,  # noqa: ANN401 - of querying
    ) -> tuple[Http, Forked]:
        sets = [
            part
            for name, value in settings.items()
            for part in ("--set", f"gateway.querying.{name}={value}")
        ]
        sets += ["--set", "gateway.away_seconds=60"]
        alone = standing_alone("--url", self.stage.url, *sets)
        base, process = await asyncio.to_thread(alone.__enter__)
        stack.callback(alone.__exit__, None, None, None)
        ready = partial(call, base, "GET", "/ready")
        await asyncio.to_thread(wait_until, lambda: ready()[0] == 200, "it finds its node")
        return Http(base), process


@contextmanager
def opened(directory: Path) -> Iterator[Kitchen]:
    with Stage(directory, SETTINGS) as stage:
        stage.start_node(shards=2)
        yield Kitchen(stage, directory)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    with opened(tmp_path_factory.mktemp("kitchen")) as made:
        yield made


@pytest.fixture
def kitchen(house: Kitchen) -> Iterator[Kitchen]:
    """Of all tests that leave the node alone; each has workers of its own."""
    yield house
    house.leave()


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Kitchen]:
    """One whose node may be killed."""
    with opened(tmp_path) as made:
        yield made


def run(kitchen: Kitchen, main: Callable[[], Any]) -> None:
    """With a client that looks on."""

    async def whole() -> None:
        async with (
            asyncio.timeout(4 * PATIENCE_SECONDS),
            maitred.connect(kitchen.stage.url, **QUICK) as client,
        ):
            kitchen.watcher = client
            await kitchen.served()
            await main()

    asyncio.run(whole())


@pytest.mark.parametrize("door", DOORS)
def test_whoever_asked_leaves(kitchen: Kitchen, door: str) -> None:
    kitchen.worker("--slots", "1")

    async def main() -> None:
        async with kitchen.door(door) as asker:
            # While another one has the slot: it leaves the line, and is never run.
            gate = kitchen.gate()
            holds, leaves, stays = (kitchen.number() for _ in range(3))
            first = asker.ask("gated", holds, str(gate))
            await kitchen.begun(holds)
            second = asker.ask("gated", leaves, str(gate))
            await kitchen.waiting("gated", 1)
            third = asker.ask("gated", stays, str(gate))
            await kitchen.waiting("gated", 2)
            second.leave()
            await kitchen.waiting("gated", 1)
            gate.touch()
            assert ((await first.told()).result, (await third.told()).result) == (holds, stays)
            assert not kitchen.count("began", leaves)
            # While it runs: stopped, and the slot is there for the next one.
            shut = str(kitchen.gate())
            for queue in ("gated", "gated-threads"):
                number = kitchen.number()
                asked = asker.ask(queue, number, shut)
                await kitchen.begun(number)
                asked.leave()
                await kitchen.stopped(number)
                assert (await asker.ask("echo", "free").told()).result == "free"
            # One that does not listen keeps its slot, and that is offered to nobody.
            for queue in ("deaf", "stubborn"):
                number, gate = kitchen.number(), kitchen.gate()
                asked = asker.ask(queue, number, str(gate))
                await kitchen.begun(number)
                asked.leave()
                if queue == "stubborn":
                    await kitchen.stopped(number)  # it was told
                after = asker.ask("echo", "after it")
                await kitchen.waiting("echo", 1)
                await kitchen.all_taken("echo")
                gate.touch()
                assert (await after.told()).result == "after it"
                assert kitchen.count("ended", number) == 1
            await kitchen.has_slots(asker, 1)

    run(kitchen, main)


@pytest.mark.parametrize("door", DOORS)
def test_a_worker_is_killed(kitchen: Kitchen, door: str) -> None:
    first = kitchen.worker("--slots", "1")

    async def main() -> None:
        # So long that one that is stopped is dialled until it is killed.
        async with kitchen.door(door, dial_seconds=20.0) as asker:
            # Before the query was sent: it has the slot, but never hears of the query.
            first.send(signal.SIGSTOP)
            number, gate = kitchen.number(), kitchen.gate()
            asked = asker.ask("gated", number, str(gate))
            await kitchen.all_taken("gated")
            second = await kitchen.another("--slots", "2")
            first.kill()
            await kitchen.begun(number)
            gate.touch()
            assert (await asked.told()).result == number
            # While it runs: whoever asked hears of it, at once; or somebody else does it.
            lost, again, streams = (kitchen.number() for _ in range(3))
            gate = kitchen.gate()
            plain = asker.ask("gated", lost, str(gate))
            twice = asker.ask("gated", again, str(gate), idempotent=True)
            await kitchen.begun(lost)
            await kitchen.begun(again)
            await kitchen.another("--slots", "2")
            second.kill()
            assert (await plain.told()).code == "worker-lost"
            await kitchen.begun(again, 2)
            gate.touch()
            assert (await twice.told()).result == again
            assert kitchen.count("began", lost) == 1
            await kitchen.has_slots(asker, 2)
            # After some rows: those, and then the error, idempotent or not.
            asked = asker.ask("rows", streams, 3, str(kitchen.gate()), rows=True, idempotent=True)
            await kitchen.begun(streams)
            await kitchen.offered("rows")
            (third,) = (one for one in kitchen.stage.journal.lines("began") if one[1] == streams)
            await kitchen.wait(lambda: not asked.task.done(), "it streams")
            # The last worker of the queue goes: those who wait hear of that, after the grace.
            hold, waits = kitchen.number(), kitchen.number()
            shut = str(kitchen.gate())
            running = asker.ask("gated", hold, shut)
            await kitchen.begun(hold)
            waiting = asker.ask("gated", waits, shut)
            await kitchen.waiting("gated", 1)
            began = asyncio.get_running_loop().time()
            os.kill(third.pid, signal.SIGKILL)
            told = await asked.told()
            assert (told.rows, told.code) == ((0, 1, 2), "worker-lost")
            assert (await running.told()).code == "worker-lost"
            told = await waiting.told()
            assert told.code == "no-worker"
            took = asyncio.get_running_loop().time() - began
            assert took >= GRACE_SECONDS * 0.9, "not before the grace is over"
            assert not kitchen.count("began", waits)
            if door == "http":
                assert told.headers["retry-after"]
            # And one that comes serves at once what waits by then.
            late = asker.ask("echo", "late")
            await kitchen.another("--slots", "1")
            while (told := await late.told()).code == "no-worker":
                late = asker.ask("echo", "late")
            assert told.result == "late"

    run(kitchen, main)


@pytest.mark.parametrize("door", DOORS)
def test_a_worker_hangs(kitchen: Kitchen, door: str) -> None:
    first = kitchen.worker("--slots", "3")

    async def main() -> None:
        async with kitchen.door(door) as asker:
            lost, again = kitchen.number(), kitchen.number()
            gate = kitchen.gate()
            plain = asker.ask("gated", lost, str(gate))
            twice = asker.ask("gated", again, str(gate), idempotent=True)
            await kitchen.begun(lost)
            await kitchen.begun(again)
            await kitchen.another("--slots", "1")
            first.send(signal.SIGSTOP)
            assert (await plain.told()).code == "worker-lost"
            # Its third slot is on offer no more; the other worker serves, other queues as well.
            await kitchen.begun(again, 2)
            await kitchen.all_taken("gated")
            gate.touch()
            assert (await twice.told()).result == again
            assert (await asker.ask("echo", 1).told()).result == 1
            # It wakes up: nobody wants what it has, and all of its slots are there again.
            first.send(signal.SIGCONT)
            await kitchen.has_slots(asker, 4)
            assert kitchen.count("began", lost) == 1

    run(kitchen, main)


def test_a_gateway_is_killed(kitchen: Kitchen) -> None:
    kitchen.worker("--slots", "2")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            native = await kitchen.native(stack, **QUICKLY)
            http, process = await kitchen.http(stack, **QUICKLY)
            runs, busy, waits = (kitchen.number() for _ in range(3))
            gate, shut = kitchen.gate(), str(kitchen.gate())
            asked = [http.ask("gated", runs, shut), http.ask("deaf", busy, str(gate))]
            await kitchen.begun(runs)
            await kitchen.begun(busy)
            asked.append(http.ask("gated", waits, shut))
            await kitchen.waiting("gated", 1)
            process.kill()
            # What runs is stopped, what waits leaves the line.
            await kitchen.stopped(runs)
            await kitchen.waiting("gated", 0)
            assert {(await one.told()).code for one in asked} <= {"closed", "reset"}
            # The thread goes on; its slot is offered to nobody.
            one, other = kitchen.number(), kitchen.number()
            first = native.ask("gated", one, shut)
            await kitchen.begun(one)
            second = native.ask("gated", other, shut)
            await kitchen.waiting("gated", 1)
            await kitchen.all_taken("gated")
            assert not kitchen.count("began", other)
            gate.touch()
            await kitchen.begun(other)
            assert kitchen.count("ended", busy) == 1
            first.leave()
            second.leave()
            await kitchen.has_slots(native, 2)
            assert not kitchen.count("began", waits)

    run(kitchen, main)


def test_shards_are_killed(doomed: Kitchen) -> None:
    kitchen = doomed
    kitchen.worker("--slots", "2")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            native = await kitchen.native(stack, **QUICKLY)
            http, _ = await kitchen.http(stack, **QUICKLY)
            gate = kitchen.gate()
            askers = (native, http)
            numbers = [kitchen.number() for _ in range(6)]
            asked = [askers[n % 2].ask("gated", n, str(gate)) for n in numbers[:2]]
            for number in numbers[:2]:
                await kitchen.begun(number)
            asked += [askers[n % 2].ask("gated", n, str(gate)) for n in numbers[2:]]
            await kitchen.waiting("gated", 4)
            for shard in kitchen.stage.node.shards:  # one of them has the queue
                os.kill(shard.pid, signal.SIGKILL)
            await kitchen.waiting("gated", 4)
            gate.touch()
            assert [(await one.told()).result for one in asked] == numbers
            assert [kitchen.count("began", number) for number in numbers] == [1] * 6
            await kitchen.has_slots(native, 2)
            # One that has no worker, nor a shard that knows of any, has an end all the same.
            hold = kitchen.gate()
            holding = [native.ask("gated", kitchen.number(), str(hold)) for _ in range(2)]
            await kitchen.all_taken("gated")
            told = await http.ask("gated", kitchen.number(), str(hold), timeout=0.3).told()
            assert told.code == "deadline-exceeded"
            hold.touch()
            for one in holding:
                assert not (await one.told()).code

    run(kitchen, main)


def test_a_node_is_killed_and_started_again(doomed: Kitchen) -> None:
    kitchen = doomed
    kitchen.worker("--slots", "2")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            native = await kitchen.native(stack, **QUICKLY)
            http, _ = await kitchen.http(stack, **QUICKLY)
            gate = kitchen.gate()
            numbers = [kitchen.number() for _ in range(4)]
            asked = [native.ask("gated", n, str(gate)) for n in numbers[:1]]
            asked += [http.ask("gated", n, str(gate)) for n in numbers[1:2]]
            for number in numbers[:2]:
                await kitchen.begun(number)
            asked += [native.ask("gated", numbers[2], str(gate))]
            asked += [http.ask("gated", numbers[3], str(gate))]
            await kitchen.waiting("gated", 2)
            await asyncio.to_thread(kitchen.stage.kill_node)
            await asyncio.to_thread(kitchen.stage.start_node, 2)
            await kitchen.waiting("gated", 2)  # all of them came back by themselves
            gate.touch()
            assert [(await one.told()).result for one in asked] == numbers
            assert [kitchen.count("began", number) for number in numbers] == [1] * 4
            await kitchen.has_slots(http, 2)

    run(kitchen, main)


@pytest.mark.parametrize("door", DOORS)
def test_a_thousand_who_leave_whenever_they_like(kitchen: Kitchen, door: str) -> None:
    """Each is answered or has left, nobody twice, and in the end every slot is free."""
    kitchen.worker("--slots", "4")
    chance = random.Random(5)

    async def main() -> None:
        async with kitchen.door(door) as asker:
            assert (await asker.ask("echo", 1).told()).result == 1
            loop = asyncio.get_running_loop()
            asked: list[tuple[int, Asked]] = []
            for number in range(1000):
                seconds = chance.choice((0.0, 0.0, 0.001, 0.01))
                one = asker.ask("moody", seconds, number)
                asked.append((number, one))
                if chance.random() < 0.7:
                    loop.call_later(chance.choice((0.0, 0.001, 0.02, 0.2)), one.leave)
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.choice((0.0, 0.005)))
            done = await asyncio.gather(*(one.task for _, one in asked), return_exceptions=True)
            answered = 0
            for (number, _), told in zip(asked, done, strict=True):
                if isinstance(told, asyncio.CancelledError):
                    continue
                assert isinstance(told, Told), told
                assert (told.result, told.code) == (number, "")
                answered += 1
            assert answered >= 250
            await kitchen.waiting("moody", 0)
            await kitchen.offered("gated")
            await kitchen.has_slots(asker, 4)

    run(kitchen, main)


@pytest.mark.parametrize("door", DOORS)
def test_a_worker_is_taken_offline_and_put_back_while_all_ask(kitchen: Kitchen, door: str) -> None:
    """It finishes what it has; nobody is lost or refused for it."""
    kitchen.worker("--slots", "2", "--name", "first")

    async def main() -> None:
        async with kitchen.door(door) as asker:
            # One that runs there is finished first, and meanwhile nobody else comes.
            number, gate = kitchen.number(), kitchen.gate()
            running = asker.ask("gated", number, str(gate))
            await kitchen.begun(number)
            await kitchen.another("--slots", "1", "--name", "second")
            ordered = asyncio.create_task(kitchen.order("offline", "--wait"))
            many = [asker.ask("moody", 0.001, one) for one in range(200)]
            assert [(await one.told()).result for one in many] == list(range(200))
            assert not ordered.done(), "it still has one"
            gate.touch()
            assert (await running.told()).result == number
            await ordered
            await kitchen.has_slots(asker, 1)
            many = [asker.ask("moody", 0.001, one) for one in range(200)]
            await kitchen.order("online")
            assert [(await one.told()).result for one in many] == list(range(200))
            await kitchen.has_slots(asker, 3)

    run(kitchen, main)


@pytest.mark.parametrize("door", DOORS)
def test_a_worker_that_nobody_can_reach(kitchen: Kitchen, door: str) -> None:
    """The node relays; whoever leaves or is killed, it comes to the same."""
    first = kitchen.worker("--slots", "1", "--listen", "none")

    async def main() -> None:
        async with kitchen.door(door) as asker:
            assert (await asker.ask("echo", "far").told()).result == "far"
            told = await asker.ask("rows", kitchen.number(), 1000, rows=True).told()
            assert told.rows == tuple(range(1000))
            shut = str(kitchen.gate())
            for queue in ("gated", "gated-threads"):
                number = kitchen.number()
                asked = asker.ask(queue, number, shut)
                await kitchen.begun(number)
                asked.leave()
                await kitchen.stopped(number)
            await kitchen.has_slots(asker, 1)
            number = kitchen.number()
            asked = asker.ask("gated", number, shut)
            await kitchen.begun(number)
            first.kill()
            assert (await asked.told()).code == "worker-lost"
            assert kitchen.count("began", number) == 1

    run(kitchen, main)
