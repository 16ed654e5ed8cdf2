"""The client for ordinary code: threads, Ctrl-C, closing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import pytest
import uvloop

import maitred
from maitred.client.client import AsyncClient
from maitred.client.sync import Client
from maitred.errors import Closed, InvalidName, Unavailable
from maitred.protocol.messages import ShardStatus, Status
from tests.client.handlers import Held
from tests.client.nodes import QUICK, RunningNode

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

BOUND_SECONDS = 30


class NodeInThread:
    """A node that runs beside the test."""

    def __enter__(self) -> Self:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.node = self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.node.__aexit__())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, running: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - whatever it returns
        return asyncio.run_coroutine_threadsafe(running, self.loop).result(BOUND_SECONDS)

    def hold(self) -> Held:
        async def held() -> Held:
            return Held(*self.node.shards)

        found = self.run(held())
        assert isinstance(found, Held)
        return found

    async def _start(self) -> RunningNode:
        return await RunningNode(2).__aenter__()


@pytest.fixture
def beside() -> Iterator[NodeInThread]:
    with NodeInThread() as running:
        yield running


def test_the_same_client_without_asyncio(beside: NodeInThread) -> None:
    with maitred.connect(beside.node.url, **QUICK) as client:
        assert isinstance(client, Client)
        assert client.echo("shop", "q", b"x", hold=0.001).payload == b"x"
        assert client.status(1).shard == 1
        assert isinstance(client.request(Status(0, 0)), ShardStatus)
        assert [entry.shard for entry in client.statuses()] == [0, 1]
        assert client.nodes()[0].node == str(beside.node.identity)
        assert client.statistics().requests == 5
        assert repr(client).startswith("<Client maitred://127.0.0.1:")
        with pytest.raises(InvalidName):
            client.echo("a:b", "q", b"x")
    assert "closed" in repr(client)
    for call in (lambda: client.echo("shop", "q", b"x"), client.statistics, client.nodes):
        with pytest.raises(Closed):
            call()
    client.close()


def test_one_client_for_many_threads(beside: NodeInThread) -> None:
    with (
        maitred.connect(beside.node.url).wait() as client,
        ThreadPoolExecutor(16) as threads,
    ):
        payloads = [str(number).encode() for number in range(500)]
        answers = threads.map(
            lambda payload: client.echo("shop", "q", payload, partition=int(payload) % 7), payloads
        )
        assert [answer.payload for answer in answers] == payloads
        assert client.statistics().requests == 500


def test_closing_while_others_wait(beside: NodeInThread) -> None:
    held = beside.hold()
    client = maitred.connect(beside.node.url, close_seconds=0.05).wait()
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(client.echo, "shop", "q", b"x") for _ in range(6)]
        for _ in waiting:
            beside.run(held.started.get())
        for closing in [threads.submit(client.close), threads.submit(client.close)]:
            closing.result(BOUND_SECONDS)
        for call in waiting:
            with pytest.raises(Closed):
                call.result(BOUND_SECONDS)
    assert not client._thread.is_alive()


def test_many_threads_close_the_same_client(beside: NodeInThread) -> None:
    """What goes wrong in the client's own thread fails the test as an unhandled exception."""
    for _ in range(50):
        client = maitred.connect(beside.node.url).wait()
        with ThreadPoolExecutor(8) as threads:
            for closing in [threads.submit(client.close) for _ in range(8)]:
                closing.result(BOUND_SECONDS)
        assert not client._thread.is_alive()


def test_closing_and_calling_at_the_same_time_never_hangs(beside: NodeInThread) -> None:
    for _ in range(20):
        client = maitred.connect(beside.node.url).wait()
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(client.echo, "shop", "q", b"x") for _ in range(20)]
            client.close()
            for call in calls:
                problem = call.exception(BOUND_SECONDS)
                assert problem is None or isinstance(problem, Closed)


def test_ctrl_c_takes_the_request_back(beside: NodeInThread) -> None:
    held = beside.hold()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt() -> None:
        beside.run(held.started.get())
        signal.pthread_kill(main_thread, signal.SIGINT)

    with maitred.connect(beside.node.url) as client:
        interrupter = threading.Thread(target=interrupt)
        # A shell starts background jobs with SIGINT ignored, and this process inherits that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupter.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                client.echo("shop", "q", b"x", timeout=BOUND_SECONDS)
        finally:
            signal.signal(signal.SIGINT, before)
        interrupter.join()
        assert beside.run(held.stopped.get()).payload == b"x"
        assert client.status(0).state == "serving"


def test_nobody_there_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with pytest.raises(Unavailable, match="refused"):
        maitred.connect("maitred://127.0.0.1:1", connect_seconds=1).wait()
    assert threading.active_count() == before


def test_importing_maitred_loads_next_to_nothing() -> None:
    program = "import sys, maitred; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"asyncio", "msgspec", "uvloop", "ssl", "maitred.client"})


def test_the_public_names() -> None:
    assert set(maitred.__all__) <= set(dir(maitred))
    assert all(getattr(maitred, name) is not None for name in maitred.__all__)
    assert maitred.AsyncClient is AsyncClient
    assert maitred.Client is Client
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        maitred.conect  # type: ignore[attr-defined]  # noqa: B018
