"""`maitred.waiting()` and `maitred.offload()`: what the worker counts, and what they do."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import maitred
from maitred import App
from maitred.errors import InvalidArgument
from tests.node.in_process import in_a_loop, until
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from maitred.worker.worker import Worker

PATIENCE_SECONDS = 30


def counted(worker: Worker) -> tuple[int, int]:
    return worker.capacity.serving, worker.capacity.waiting


# Outside of a worker


@in_a_loop
async def test_outside_of_a_worker_they_do_what_they_say() -> None:
    async with maitred.waiting():
        pass
    with maitred.waiting():
        pass
    with ThreadPoolExecutor(1) as threads:
        assert await maitred.offload(threads, pow, 2, 10) == 1024
        assert await maitred.offload(threads, int, "ff", base=16) == 255
        with pytest.raises(ZeroDivisionError):
            await maitred.offload(threads, divmod, 1, 0)


@in_a_loop
async def test_bad_input() -> None:
    with pytest.raises(InvalidArgument, match="needs an executor"):
        await maitred.offload(None, print)  # type: ignore[arg-type]
    once = maitred.waiting()
    with once, pytest.raises(InvalidArgument, match="already entered"), once:
        pass
    with once:  # left, so it may be used again
        pass


# In a worker


@in_a_loop
async def test_who_waits_for_a_semaphore_counts_as_waiting() -> None:
    app = App("desk")
    permits = asyncio.Semaphore(1)
    go_on = asyncio.Event()

    @app.handler("held")
    async def held() -> None:
        async with maitred.waiting():
            await permits.acquire()
        try:
            await go_on.wait()
        finally:
            permits.release()

    async with (
        ReservingNode() as node,
        a_worker(node, app, slots=4) as worker,
        a_gateway(worker) as gateway,
    ):
        streams = [gateway.run(node.reserve("held")) for _ in range(3)]
        await until(lambda: counted(worker) == (1, 2))
        go_on.set()
        for stream in streams:
            assert await gateway.result(stream) is None
        assert counted(worker) == (0, 0)


@in_a_loop
async def test_the_same_in_threads() -> None:
    app = App("desk")
    permits = threading.Semaphore(1)
    go_on = threading.Event()

    @app.handler("held")
    def held() -> None:
        with maitred.waiting():
            assert permits.acquire(timeout=PATIENCE_SECONDS)
        try:
            assert go_on.wait(PATIENCE_SECONDS)
        finally:
            permits.release()

    async with (
        ReservingNode() as node,
        a_worker(node, app, slots=4) as worker,
        a_gateway(worker) as gateway,
    ):
        streams = [gateway.run(node.reserve("held")) for _ in range(3)]
        await until(lambda: counted(worker) == (1, 2))
        go_on.set()
        for stream in streams:
            assert await gateway.result(stream) is None
        await until(lambda: counted(worker) == (0, 0))


@in_a_loop
async def test_who_is_cancelled_while_it_waits_waits_no_more() -> None:
    app = App("desk")

    @app.handler("never")
    async def never() -> None:
        async with maitred.waiting():
            await asyncio.Event().wait()

    async with ReservingNode() as node, a_worker(node, app, slots=4) as worker:
        async with a_gateway(worker) as gateway:
            gateway.run(node.reserve("never"))
            await until(lambda: counted(worker) == (0, 1))
        await until(lambda: counted(worker) == (0, 0))


@in_a_loop
async def test_what_is_beyond_the_workers_of_a_pool_waits() -> None:
    app = App("desk")
    go_on = threading.Event()

    def work(number: int) -> str:
        assert go_on.wait(PATIENCE_SECONDS)
        return f"{number} {maitred.current().user}"

    with ThreadPoolExecutor(2) as threads:

        @app.handler("render")
        async def render(number: int) -> str:
            return await maitred.offload(threads, work, number)

        async with (
            ReservingNode() as node,
            a_worker(node, app, slots=8) as worker,
            a_gateway(worker) as gateway,
        ):
            streams = [gateway.run(node.reserve("render"), number) for number in range(5)]
            await until(lambda: counted(worker) == (2, 3))
            go_on.set()
            assert [await gateway.result(stream) for stream in streams] == [
                f"{number} ann" for number in range(5)
            ]
            await until(lambda: counted(worker) == (0, 0))


@in_a_loop
async def test_a_call_that_was_not_begun_is_taken_back_with_its_query() -> None:
    app = App("desk")
    go_on = threading.Event()
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)
        assert go_on.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as threads:

        @app.handler("render")
        async def render(number: int) -> None:
            await maitred.offload(threads, work, number)

        async with ReservingNode() as node, a_worker(node, app, slots=8) as worker:
            async with a_gateway(worker) as stays, a_gateway(worker) as leaves:
                first = stays.run(node.reserve("render"), 1)
                await until(lambda: ran == [1])
                leaves.run(node.reserve("render"), 2)
                await until(lambda: counted(worker) == (1, 1))
                leaves.transport.abort()
                await until(lambda: counted(worker) == (1, 0))
                last = stays.run(node.reserve("render"), 3)
                await until(lambda: counted(worker) == (1, 1))
                go_on.set()
                for stream in (first, last):
                    assert await stays.result(stream) is None
            assert ran == [1, 3]


@in_a_loop
async def test_one_attempt_with_many_calls_is_served_while_one_of_them_runs() -> None:
    app = App("desk")
    go_on = threading.Event()

    def work(number: int) -> int:
        assert go_on.wait(PATIENCE_SECONDS)
        return number

    with ThreadPoolExecutor(2) as threads:

        @app.handler("pages")
        async def pages(many: int) -> int:
            calls = (maitred.offload(threads, work, number) for number in range(many))
            return sum(await asyncio.gather(*calls))

        async with (
            ReservingNode() as node,
            a_worker(node, app, slots=8) as worker,
            a_gateway(worker) as gateway,
        ):
            first = gateway.run(node.reserve("pages"), 6)
            await until(lambda: counted(worker) == (1, 0))
            second = gateway.run(node.reserve("pages"), 2)
            await until(lambda: counted(worker) == (1, 1))
            go_on.set()
            assert [await gateway.result(first), await gateway.result(second)] == [15, 1]


@in_a_loop
async def test_processes() -> None:
    app = App("desk")
    with ProcessPoolExecutor(1) as processes:
        processes.submit(int).result()  # before there are sockets that a fork would keep open

        @app.handler("power")
        async def power(base: int) -> int:
            return await maitred.offload(processes, pow, base, 2)

        async with (
            ReservingNode() as node,
            a_worker(node, app, slots=8) as worker,
            a_gateway(worker) as gateway,
        ):
            streams = [gateway.run(node.reserve("power"), base) for base in range(4)]
            assert [await gateway.result(stream) for stream in streams] == [0, 1, 4, 9]
            await until(lambda: counted(worker) == (0, 0))
