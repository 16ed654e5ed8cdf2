"""Queries asked of real workers through a real node: what comes of them, and who must stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator  # noqa: TC003 - handlers' annotations are read
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred import App
from maitred.errors import (
    Cancelled,
    InvalidArguments,
    NoWorker,
    QueryFailed,
    ResultTooLarge,
    UnknownQueue,
    WorkerLost,
)
from maitred.protocol.queries import Queries, QueriesFound, QueryFilter
from maitred.settings import QuerySettings as QueriesSettings
from maitred.settings import Queue
from tests.client.waiters import expired, until
from tests.queries_real.house import Scene, scene

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.worker.worker import Worker

    Run = Callable[[Coroutine[Any, Any, None]], None]


class Shop:
    """An app with handlers that tell what happens to them."""

    def __init__(self) -> None:
        self.app = app = App("shop")
        self.began: list[object] = []
        self.ended: list[object] = []
        self.cancelled: list[object] = []
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()

        @app.handler("echo")
        async def echo(value: str, times: int = 1) -> str:
            return value * times

        @app.handler("plain")
        def plain(value: int) -> int:
            return value + 1

        @app.handler("count", timeout=10)
        async def count(most: int) -> AsyncIterator[int]:
            try:
                for number in range(most):
                    self.began.append(number)
                    yield number
            finally:
                self.ended.append("count")

        @app.handler("letters")
        def letters(most: int) -> Iterator[str]:
            for number in range(most):
                yield chr(97 + number)

        @app.handler("fail")
        async def fail(why: str) -> None:
            raise KeyError(why)

        @app.handler("wait")
        async def wait(name: str) -> str:
            self.began.append(name)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return f"{name} waited"

        @app.handler("block")
        def block(name: str) -> str:
            self.began.append(name)
            current = maitred.current()
            while not self.thread_gate.wait(0.005):
                if current.cancelled:
                    self.cancelled.append(name)
                    return "stopped"
            return name

        @app.handler("big")
        async def big(size: int) -> bytes:
            return b"x" * size

        self.echo, self.plain, self.count, self.letters = echo, plain, count, letters
        self.wait, self.fail, self.block, self.big = wait, fail, block, big


def test_results_and_errors(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker()
            client = await made.client()
            assert await client.query("shop/echo", "a", 3) == "aaa"
            assert await client.query("shop/echo", named={"value": "b"}) == "b"
            assert await client.query("plain", 1, namespace="shop") == 2
            assert await shop.echo.query("x", times=2) == "xx"
            assert await shop.plain.query(4) == 5
            with pytest.raises(QueryFailed) as failed:
                await shop.fail.query("no")
            assert failed.value.kind == "KeyError"
            assert "no" in failed.value.message
            assert "raise KeyError" in failed.value.remote_traceback
            with pytest.raises(InvalidArguments):
                await client.query("shop/plain", "x")
            with pytest.raises(UnknownQueue, match="ech"):
                await client.query("shop/ech", 1)
            rows = client.querying.table.rows()
            assert [row.status for row in rows] == ["done"] * 3 + ["failed", "refused"]
            assert {row.worker for row in rows[:3]} == {"w1"}

    run(main())


def test_streams(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker()
            client = await made.client()
            assert [row async for row in client.stream("shop/count", 5)] == [0, 1, 2, 3, 4]
            assert [row async for row in shop.letters.stream(3)] == ["a", "b", "c"]
            assert [row async for row in shop.count.stream(0)] == []
            assert await shop.count.query(3) == [0, 1, 2]
            many = [row async for row in shop.count.stream(20_000)]
            assert many == list(range(20_000))

    run(main())


def test_a_stream_is_held_back_and_stopped(run: Run) -> None:
    async def main() -> None:
        shop = Shop()

        @shop.app.handler("blocks")
        async def blocks() -> AsyncIterator[bytes]:
            try:
                while True:
                    shop.began.append(1)
                    yield b"x" * 50_000
            finally:
                shop.ended.append("blocks")

        async with scene(shop.app) as made:
            await made.worker(chunk_bytes=65536)
            client = await made.client(window_bytes=262_144)
            async with client.stream("shop/blocks") as stream:
                assert len(await anext(stream)) == 50_000
                await client.query("shop/echo", "x")
                before = len(shop.began)
                assert before < 40, "not far beyond the window"
                for _ in range(60):
                    await anext(stream)
                assert len(shop.began) > before
            await until(lambda: shop.ended == ["blocks"])
            assert await client.query("shop/echo", "still there") == "still there"

    run(main())


def test_cancel_and_deadline_stop_the_handler(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker(slots=2)
            client = await made.client()
            task = asyncio.create_task(shop.wait.query("cancelled"))
            await until(lambda: shop.began == ["cancelled"])
            task.cancel()
            await until(lambda: shop.cancelled == ["cancelled"])
            await expired(
                lambda seconds: client.query("shop/wait", "late", timeout=seconds),
                lambda _: "late" in shop.began,
            )
            await until(lambda: "late" in shop.cancelled)
            await expired(
                lambda seconds: shop.block.options(timeout=seconds).query("thread"),
                lambda _: "thread" in shop.began,
            )
            await until(lambda: "thread" in shop.cancelled)
            # Both slots are free again.
            shop.gate.set()
            both = tuple(await asyncio.gather(shop.wait.query("a"), shop.wait.query("b")))
            assert both == ("a waited", "b waited")

    run(main())


def test_queries_wait_for_a_slot_first_come_first_served(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker(slots=1)
            one, two = await made.client(), await made.client()
            holding = asyncio.create_task(one.query("shop/wait", "holds"))
            await until(lambda: shop.began == ["holds"])
            order: list[int] = []

            async def ask(client: maitred.AsyncClient, number: int) -> None:
                await client.query("shop/wait", str(number))
                order.append(number)

            tasks = []
            for number in range(6):
                client = (one, two)[number % 2]
                tasks.append(asyncio.create_task(ask(client, number)))
                asked = len(client.querying.table.rows())
                await until(lambda c=client, n=asked: len(c.querying.table.rows()) > n)  # type: ignore[misc]
                await asyncio.sleep(0.02)  # so that the ages differ
            shop.gate.set()
            await asyncio.gather(holding, *tasks)
            assert order == sorted(order)

    run(main())


def test_a_new_worker_serves_what_waits(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            first = await made.worker("first")
            client = await made.client()
            assert await client.query("shop/echo", "a") == "a"
            await first.stop()
            waiting = asyncio.create_task(client.query("shop/echo", "b"))
            await made.worker("second")
            assert await waiting == "b"
            assert client.querying.table.rows()[-1].worker == "second"

    run(main())


def test_nobody_serves_it(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        quick = {"*": Queue(queries=QueriesSettings(no_worker_seconds=0.2))}
        async with scene(shop.app, queues=quick) as made:
            worker = await made.worker(attend_seconds=0.1)
            client = await made.client()
            assert await client.query("shop/echo", "a") == "a"
            await worker.stop()
            with pytest.raises(NoWorker):
                await client.query("shop/echo", "b", timeout=10)

    run(main())


def kill(worker: Worker) -> None:
    """As a kill of its process would: its links break, its listener is gone, it says nothing."""
    door = worker._listener
    if door._server is not None:
        door._server.close()
    for link in list(door.links):
        link.abort()


def test_a_worker_that_is_lost(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            first = await made.worker("first", slots=1)
            client = await made.client()
            plain = asyncio.create_task(client.query("shop/wait", "plain"))
            await until(lambda: shop.began == ["plain"])
            again = asyncio.create_task(client.query("shop/wait", "again", idempotent=True))
            kill(first.worker)
            with pytest.raises(WorkerLost):
                await plain
            await until(lambda: shop.cancelled == ["plain"])
            shop.gate.set()
            await made.worker("second", slots=1)
            assert await again == "again waited"

    run(main())


def test_idempotent_queries_run_elsewhere(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            first = await made.worker("first", slots=1)
            client = await made.client()
            task = asyncio.create_task(client.query("shop/wait", "x", idempotent=True))
            await until(lambda: shop.began == ["x"])
            await made.worker("second", slots=1)
            kill(first.worker)
            await until(lambda: shop.began == ["x", "x"])
            shop.gate.set()
            assert await task == "x waited"
            (row,) = client.querying.table.rows()
            assert row.attempts >= 2

    run(main())


def test_relayed(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker(host=None)
            client = await made.client()
            assert await client.query("shop/echo", "far") == "far"
            (row,) = client.querying.table.rows()
            assert row.relayed
            assert [one async for one in client.stream("shop/count", 5000)] == list(range(5000))
            with pytest.raises(QueryFailed):
                await client.query("shop/fail", "no")
            big = await client.query("shop/big", 3_000_000)
            assert len(big) == 3_000_000
            task = asyncio.create_task(client.query("shop/wait", "x"))
            await until(lambda: shop.began[-1:] == ["x"])
            task.cancel()
            await until(lambda: shop.cancelled == ["x"])
            stream = client.stream("shop/count", 10_000_000)
            assert await anext(stream) == 0
            shop.ended.clear()
            await stream.aclose()
            await until(lambda: shop.ended)

    run(main())


def test_a_worker_that_cannot_be_dialled_is_relayed_to(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            serving = await made.worker()
            server = serving.worker._listener._server
            assert server is not None
            server.close()  # as a firewall would have it
            client = await made.client()
            assert await client.query("shop/echo", "far") == "far"
            assert await client.query("shop/echo", "again") == "again"
            assert all(row.relayed for row in client.querying.table.rows())

    run(main())


def test_results_that_are_too_large(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        small = {"*": Queue(queries=QueriesSettings(result_bytes=10_000))}
        async with scene(shop.app, queues=small) as made:
            await made.worker()
            client = await made.client()
            assert len(await client.query("shop/big", 9_000)) == 9_000
            with pytest.raises(ResultTooLarge):
                await client.query("shop/big", 20_000)

    run(main())


def test_people_list_and_cancel(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker()
            one, two = await made.client(), await made.client()
            tasks = [
                asyncio.create_task(one.query("shop/wait", "one")),
                asyncio.create_task(two.query("shop/wait", "two")),
            ]
            await until(lambda: sorted(map(str, shop.began)) == ["one", "two"])
            found = await people(made, "list", QueryFilter(queue="wait"))
            assert sorted(row.query for row in found.rows) == ["one", "two"]
            assert found.gateways == 2
            gateway = two.querying.table.gateway
            gone = await people(made, "cancel", QueryFilter(gateway=gateway, sequence=1))
            assert [row.query for row in gone.rows] == ["two"]
            with pytest.raises(Cancelled):
                await tasks[1]
            await until(lambda: shop.cancelled == ["two"])
            shop.gate.set()
            assert await tasks[0] == "one waited"

    run(main())


async def people(made: Scene, action: Any, wanted: QueryFilter) -> QueriesFound:  # noqa: ANN401
    async with made.house.connect() as client:
        answer = await client.request(Queries(0, 0, action, wanted))
        assert isinstance(answer, QueriesFound)
        return answer


def test_the_shard_is_started_again(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker(slots=1)
            client = await made.client()
            holding = asyncio.create_task(client.query("shop/wait", "holds"))
            await until(lambda: shop.began == ["holds"])
            waiting = asyncio.create_task(client.query("shop/wait", "waits"))
            await until(lambda: len(client.querying.table.rows()) == 2)
            await made.house.stop()
            await made.house.start()
            shop.gate.set()
            assert await holding == "holds waited", "the link needs no shard"
            assert await waiting == "waits waited"

    run(main())


def test_ordinary_code(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        async with scene(shop.app) as made:
            await made.worker()

            def ordinary() -> None:
                with made.house.connect() as client:
                    assert client.query("shop/echo", "a") == "a"
                    assert list(client.stream("shop/count", 3)) == [0, 1, 2]
                    with client.stream("shop/count", 10_000_000) as stream:
                        assert next(stream) == 0
                    for row in client.stream("shop/count", 10_000_000):
                        assert row == 0
                        break
                    with pytest.raises(QueryFailed):
                        client.query("shop/fail", "no")
                with shop.app.sync:
                    assert shop.echo.sync.query("b") == "b"
                    assert list(shop.letters.sync.stream(2)) == ["a", "b"]
                    assert shop.letters.sync.query(2) == ["a", "b"]

            await asyncio.to_thread(ordinary)
            await until(lambda: len(shop.ended) == 3)

    run(main())


def test_several_shards_and_partitions(run: Run) -> None:
    async def main() -> None:
        shop = Shop()
        many = {"*": Queue(partitions=4)}
        async with scene(shop.app, 2, queues=many) as made:
            await made.worker("w1", slots=2)
            await made.worker("w2", slots=2)
            client = await made.client()
            found = await asyncio.gather(*(client.query("shop/echo", str(n)) for n in range(200)))
            assert found == [str(n) for n in range(200)]

    run(main())
