"""Arguments that no handler takes are refused by the producer; the node remembers what fits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from maitred import App
from maitred.app.signature import Signature
from maitred.errors import (
    DeadlineExceeded,
    InvalidArguments,
    NoHandlerFits,
    NoWorker,
    StoreUnavailable,
    UnknownQueue,
    UnknownTask,
)
from maitred.matching.signatures import SIGNATURES_ROW
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import Attend
from maitred.protocol.tasks import (
    Await,
    Describe,
    PartitionDescription,
    Signatures,
    SignaturesFound,
)
from tests.node.in_process import in_a_loop
from tests.node.shops import shop
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import Any

    from maitred.client.client import AsyncClient
    from tests.node.shops import Shop
    from tests.store.engines import Engine

SECONDS = 20.0
ATTEND_SECONDS = 3.0
"""A repeated ATTEND waits for news for so long."""
WHERE = ("shop", "thumbnails", 1, 0, 0)


async def thumbnail(url: str, size: int) -> str:
    raise NotImplementedError


async def wider(url: str, size: int, height: int = 0) -> str:
    raise NotImplementedError


async def renamed(link: str) -> str:
    raise NotImplementedError


async def attend(client: AsyncClient, number: int, signature: bytes, state: Any = "online") -> None:  # noqa: ANN401
    secret = b"%016d" % number
    with suppress(DeadlineExceeded):  # a busy node answers late, but it has heard it
        await client.request(
            Attend(*WHERE, secret, f"worker {number}", "", 1, 0, state, signature=signature),
            ATTEND_SECONDS,
        )


async def known(client: AsyncClient, *, must_exist: bool = False) -> SignaturesFound:
    found = await client.request(Signatures(*WHERE, must_exist), SECONDS)
    assert isinstance(found, SignaturesFound)
    return found


def described(function: Callable[..., Any]) -> bytes:
    return Signature(function).describe()


@asynccontextmanager
async def producing(one: Shop, function: Callable[..., Any], **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401
    """A handler of a producer with that version of the function."""
    app = App("shop", node=f"maitred://127.0.0.1:{one.node.port}")
    handler = app.handler("thumbnails", **options)(function)
    async with app:
        yield handler


@in_a_loop
async def test_signatures_outlive_their_workers_and_the_node(
    tmp_path: Path, engine: Engine
) -> None:
    async with shop(tmp_path, engine) as one:
        async with one.client() as client:
            assert await known(client) == SignaturesFound([], None)
            with pytest.raises(UnknownQueue):
                await known(client, must_exist=True)
            assert not one.node.shard._partitions.owned, "asking makes no queue"  # type: ignore[union-attr]
            await attend(client, 1, described(thumbnail))
            await attend(client, 2, described(wider))
            found = await known(client)
            assert set(found.signatures) == {described(thumbnail), described(wider)}
            assert found.served_seconds_ago == 0.0
            for number in (1, 2):
                await attend(client, number, described(wider), "offline")
        for _ in range(2):
            assert await one.restart()
            async with one.client() as client:
                found = await known(client, must_exist=True)
                assert set(found.signatures) == {described(thumbnail), described(wider)}
                assert found.served_seconds_ago is not None
                # The row of the signatures is nobody's task.
                with pytest.raises(UnknownTask):
                    await client.request(Await(*WHERE, SIGNATURES_ROW), SECONDS)
                # One more owner writes the row anew, with what it found in it.
                await attend(client, 3, described(thumbnail))


@in_a_loop
async def test_signatures_that_come_at_once_are_one_row(tmp_path: Path, engine: Engine) -> None:
    """Ten workers with new handlers within one commit."""
    made = [msgpack.encode([f"version {number}", []]) for number in range(10)]
    async with shop(tmp_path, engine, finish_seconds=0.05) as one:
        async with one.client() as client:
            await attend(client, 99, made[0])
            await known(client)  # from now on the row of an earlier owner is known
            for state in ("online", "offline"):
                await asyncio.gather(*(attend(client, *one, state) for one in enumerate(made)))
            assert set((await known(client)).signatures) == set(made)
        assert await one.restart()
        async with one.client() as client:
            assert set((await known(client)).signatures) == set(made)
    assert not one.node.log.events("error")


@in_a_loop
async def test_a_producer_with_another_version_is_refused_what_no_worker_takes(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        async with producing(one, renamed) as before:
            await before.enqueue("nobody serves it yet")
        await attend(client, 1, described(thumbnail))
        async with producing(one, renamed) as handler:
            for refused in (handler.enqueue("u"), handler.enqueue_many([handler.call("u")])):
                with pytest.raises(NoHandlerFits, match="thumbnail lacks its argument 'size'"):
                    await refused
            with pytest.raises(InvalidArguments):  # it is a kind of these
                await handler.options(delay=5).enqueue("u")
            await attend(client, 2, described(renamed))
            await handler.enqueue("a worker has come that takes it")
        async with producing(one, wider) as handler:
            await handler.enqueue("u", 5)  # fits the older one
            with pytest.raises(NoHandlerFits) as told:
                await handler.enqueue("u", 5, 6)
            assert told.value.remedy is not None
            assert "1 other handler" in told.value.remedy
            await attend(client, 3, b"")
            await handler.enqueue("u", 5, 6)  # a worker that says nothing may take it


@in_a_loop
async def test_whoever_has_a_handler_that_is_served_asks_once_in_a_while(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        await attend(client, 1, described(thumbnail))
        asked: list[object] = []
        shard = one.node.shard
        hold = shard.holders[Opcode.SIGNATURES]

        def counted(message: Any, held: Any) -> None:  # noqa: ANN401
            asked.append(message)
            hold(message, held)

        shard.holders[Opcode.SIGNATURES] = counted
        async with producing(one, thumbnail) as handler:
            await asyncio.gather(*(handler.enqueue("u", n) for n in range(100)))
            await handler.enqueue_many([handler.call("u", n) for n in range(100)])
            await handler.options(priority=0).enqueue("u", 1)
            assert len(asked) == 1


@in_a_loop
async def test_a_node_that_does_not_say_gets_the_tasks(tmp_path: Path) -> None:
    """An older one knows no such question."""
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        await attend(client, 1, described(thumbnail))
        del one.node.shard.holders[Opcode.SIGNATURES]
        async with producing(one, renamed) as handler:
            await handler.enqueue("u")


@in_a_loop
async def test_a_worker_can_be_required(tmp_path: Path) -> None:
    async with (
        shop(tmp_path, Simulated()) as one,
        one.client() as client,
        producing(one, thumbnail, require_worker=True) as handler,
    ):
        with pytest.raises(UnknownQueue):
            await handler.enqueue("u", 1)
        with pytest.raises(UnknownQueue):
            await handler.enqueue_many([handler.call("u", 1)])
        assert not one.node.shard._partitions.owned  # type: ignore[union-attr]
        await handler.options(require_worker=False).enqueue("u", 1)
        with pytest.raises(NoWorker, match="No worker has served the queue shop/thumbnails"):
            await handler.enqueue("u", 1)
        described_ = await client.request(Describe(*WHERE), SECONDS)
        assert isinstance(described_, PartitionDescription)
        assert described_.served_seconds_ago is None
        await attend(client, 1, described(thumbnail))
        await handler.enqueue("u", 1)
        described_ = await client.request(Describe(*WHERE), SECONDS)
        assert isinstance(described_, PartitionDescription)
        assert described_.served_seconds_ago == 0.0


@in_a_loop
async def test_a_queue_with_too_many_signatures_takes_anything(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        await attend(client, 1, described(thumbnail))
        for number in range(20):
            await attend(client, 100 + number, msgpack.encode([f"junk {number}", []]))
        async with producing(one, renamed) as handler:
            await handler.enqueue("u")


@in_a_loop
async def test_signatures_that_cannot_be_read_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path, Simulated()) as one:
        async with one.client() as client:
            await attend(client, 1, described(thumbnail))
        assert await one.restart()
        async with one.client() as client:
            with monkeypatch.context() as while_away:

                async def away(*_: object) -> None:
                    raise StoreUnavailable("for the test")

                while_away.setattr(one.stores[0], "result", away)
                await attend(client, 2, described(wider))
                assert (await known(client)).signatures == [described(wider)]
            # Nothing was overwritten meanwhile.
            assert set((await known(client)).signatures) == {described(thumbnail), described(wider)}
