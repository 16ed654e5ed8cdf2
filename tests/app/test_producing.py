"""Producers: what goes over the wire, and what comes back, from a node that is a fake."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from maitred import App
from maitred.client import enqueue_batches
from maitred.errors import (
    ConnectionLost,
    InvalidArguments,
    MaitredError,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    ProtocolViolation,
    RemoteError,
    StoreUnavailable,
    Unavailable,
)
from maitred.protocol.tasks import Add, Added, Counts
from tests.app.fake_node import FakeNode
from tests.node.in_process import in_a_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

app = App("shop")


@app.handler("thumbnails", retries=1)
async def thumbnail(url: str, size: int = 1) -> str:
    return f"{url}:{size}"


@app.handler("blobs")
async def blob(data: bytes) -> None: ...


@app.handler("charges", hide=["card", "code"])
async def charge(amount: int, code: str = "", note: str = "", *, card: str = "") -> None: ...


@contextlib.asynccontextmanager
async def a_node(counts: Counts | None = None) -> AsyncIterator[FakeNode]:
    async with FakeNode(counts=counts) as node:
        node.app(app)
        async with app:
            yield node


@in_a_loop
async def test_what_is_enqueued_in_one_turn_is_one_message() -> None:
    async with a_node() as node:
        tasks = await asyncio.gather(*(thumbnail.enqueue("u", number) for number in range(50)))
        (message,) = node.heard(Add)
        assert len(message.payloads) == 50
        assert (message.namespace, message.queue, message.partition) == ("shop", "thumbnails", 0)
        assert message.terms.retries == 1
        waiting = node.partition("thumbnails").waiting
        assert [task.sequence for task in tasks] == [one.sequence for one in waiting]
        assert [thumbnail.signature.read(one.payload)[0] for one in waiting] == [
            ("u", number) for number in range(50)
        ]


@pytest.mark.parametrize(
    ("traces", "sent"),
    [
        ([b"", b"first", b"", b"second"], [b"", b"first", b"", b"second"]),
        ([b"one", b"one", b"one"], b"one"),
        ([b"", b""], b""),
    ],
)
@in_a_loop
async def test_each_task_of_a_message_keeps_its_own_trace(
    traces: list[bytes], sent: bytes | list[bytes]
) -> None:
    """As at a gateway, whose callers send a trace each, or none."""
    async with a_node() as node:
        adding = await thumbnail._begin_adding()
        payload = thumbnail.call("u").payload
        await asyncio.gather(*(adding.add(thumbnail.conditions, payload, one) for one in traces))
        (message,) = node.heard(Add)
        assert message.traces == sent


@in_a_loop
async def test_other_options_are_another_message() -> None:
    async with a_node() as node:
        soon = thumbnail.options(priority=0, delay=3)
        same = thumbnail.options(delay=3, priority=0)
        await asyncio.gather(thumbnail.enqueue("u"), soon.enqueue("u"), same.enqueue("u"))
        assert [(one.priority, one.delay, len(one.payloads)) for one in node.heard(Add)] == [
            (2, 0.0, 1),
            (0, 3.0, 2),
        ]


@in_a_loop
async def test_the_node_is_told_which_arguments_are_hidden() -> None:
    """None would mean that the producer does not know the handler."""
    async with a_node() as node:
        urgent = charge.options(priority=0, retries=7)
        await charge.enqueue(1, card="4929")
        await urgent.enqueue(2, card="4929")
        await charge.enqueue_many([charge.call(3, card="4929")])
        await urgent.enqueue_many([urgent.call(4, card="4929")])
        await thumbnail.enqueue("u")
        await thumbnail.options(delay=1).enqueue("u")
        assert [(one.queue, one.terms.hidden) for one in node.heard(Add)] == [
            *[("charges", (1, 3))] * 4,
            *[("thumbnails", ())] * 2,
        ]


@in_a_loop
async def test_newer_counts_are_learned_from_the_first_answer_and_batches_spread() -> None:
    async with a_node(Counts(4, 4, 7)) as node:
        await thumbnail.enqueue("u")
        await asyncio.gather(*(thumbnail.enqueue("u", number) for number in range(400)))
        first, *spread = node.heard(Add)
        assert (first.partition, first.version) == (0, 0)
        assert {one.version for one in spread} == {7}
        assert sorted(one.partition for one in spread) == [0, 1, 2, 3]
        assert [len(one.payloads) for one in spread] == [100] * 4


@in_a_loop
async def test_a_partition_that_takes_no_more_is_left_at_once() -> None:
    async with a_node(Counts(4, 4, 1)) as node:
        for _ in range(2):
            await thumbnail.enqueue("u")
        node.counts = Counts(4, 1, 2)
        tasks = [await thumbnail.enqueue("u") for _ in range(4)]
        assert {task.partition for task in tasks} == {0}
        *_, last = node.heard(Add)
        assert last.version == 2


@in_a_loop
async def test_counts_that_are_older_or_impossible_change_nothing() -> None:
    async with a_node(Counts(4, 4, 5)) as node:
        await thumbnail.enqueue("u")
        view = (await app.session()).adding(thumbnail.id, "weighted").view
        view.learn(Counts(9, 9, 4))
        assert view.counts.read == 4
        with pytest.raises(ProtocolViolation, match="impossible"):
            view.learn(Counts(1, 2, 6))
        assert node.heard(Add)


@in_a_loop
async def test_a_node_that_never_finds_a_partition_is_not_asked_for_ever() -> None:
    async with a_node() as node:

        async def nowhere(_: Add) -> Added:
            return Added(-1)

        node.before[Add] = nowhere
        with pytest.raises(Unavailable, match="took no more tasks"):
            await thumbnail.enqueue("u")
        assert len(node.heard(Add)) == enqueue_batches.CORRECTIONS_MAX


@in_a_loop
async def test_many_at_once_are_cut_into_messages() -> None:
    async with a_node() as node:
        tasks = await thumbnail.enqueue_many(thumbnail.call("u", size) for size in range(25_000))
        assert [len(one.payloads) for one in node.heard(Add)] == [10_000, 10_000, 5_000]
        assert len({task.id for task in tasks}) == 25_000
        waiting = node.partition("thumbnails").waiting
        assert thumbnail.signature.read(waiting[-1].payload)[0] == ("u", 24_999)
        assert await thumbnail.enqueue_many([]) == []


@in_a_loop
async def test_messages_are_bounded_in_bytes() -> None:
    async with a_node() as node:
        data = bytes(300_000)
        await blob.enqueue_many([blob.call(data)] * 7)
        await asyncio.gather(*(blob.enqueue(data) for _ in range(4)))
        assert [len(one.payloads) for one in node.heard(Add)] == [3, 3, 1, 3, 1]


@in_a_loop
async def test_a_payload_that_is_too_large_fails_alone() -> None:
    async with a_node() as node:
        fine, large = await asyncio.gather(
            blob.enqueue(b"fine"), blob.enqueue(bytes(3 * 2**20)), return_exceptions=True
        )
        assert isinstance(large, PayloadTooLarge)
        assert not isinstance(fine, BaseException)
        with pytest.raises(PayloadTooLarge):
            await blob.enqueue_many([blob.call(b""), blob.call(bytes(3 * 2**20))])
        assert len(node.partition("blobs").waiting) == 1


@in_a_loop
async def test_arguments_that_do_not_fit_never_leave() -> None:
    async with a_node() as node:
        with pytest.raises(InvalidArguments, match="'size'"):
            await thumbnail.enqueue("u", "large")  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="not a call of thumbnail"):
            await thumbnail.enqueue_many([blob.call(b"")])  # type: ignore[list-item]
        assert not node.heard(Add)


@in_a_loop
async def test_a_lost_connection_is_told_to_each_and_nothing_is_sent_again() -> None:
    async with a_node() as node:

        async def die(_: Add) -> None:
            for connection in list(node.shards[0].connections):
                connection.abort()
            await asyncio.Event().wait()

        node.before[Add] = die
        problems = await asyncio.gather(
            *(thumbnail.enqueue("u") for _ in range(3)), return_exceptions=True
        )
        assert [type(problem) for problem in problems] == [ConnectionLost] * 3
        assert len({id(problem) for problem in problems}) == 3
        assert len(node.heard(Add)) == 1


@in_a_loop
async def test_errors_of_newer_nodes_reach_each_caller() -> None:
    async with a_node() as node:

        async def refuse(_: Add) -> None:
            raise RemoteError("It is Tuesday.", code="tuesday")

        node.before[Add] = refuse
        problems = await asyncio.gather(
            *(thumbnail.enqueue("u") for _ in range(2)), return_exceptions=True
        )
        assert [getattr(problem, "code", None) for problem in problems] == ["tuesday"] * 2


@in_a_loop
async def test_what_was_not_done_is_tried_again() -> None:
    async with a_node() as node:
        refused: list[Add] = []

        async def refuse_once(message: Add) -> None:
            if not refused:
                refused.append(message)
                raise Overloaded("Later.")

        node.before[Add] = refuse_once
        await thumbnail.enqueue("u")
        assert len(node.partition("thumbnails").waiting) == 1


@in_a_loop
async def test_whoever_is_cancelled_disturbs_nobody() -> None:
    async with a_node() as node:
        held = asyncio.Event()

        async def wait(_: Add) -> None:
            await held.wait()

        node.before[Add] = wait
        first = asyncio.create_task(thumbnail.enqueue("a"))
        second = asyncio.create_task(thumbnail.enqueue("b"))
        await node.until(lambda: node.heard(Add))
        first.cancel()
        node.before.clear()
        held.set()
        assert (await second).sequence == node.partition("thumbnails").waiting[1].sequence
        with pytest.raises(asyncio.CancelledError):
            await first


@in_a_loop
async def test_an_app_connects_when_it_is_used_and_again_after_its_end() -> None:
    async with FakeNode() as node:
        node.app(app)
        first, second = await asyncio.gather(thumbnail.enqueue("u"), blob.enqueue(b""))
        assert first.queue != second.queue
        assert sum(node.connections()) == 1
        await app.close()
        await thumbnail.enqueue("u")
        await app.close()
        await app.close()
        assert len(node.partition("thumbnails").waiting) == 2


@in_a_loop
async def test_without_a_node_it_says_so_and_works_when_there_is_one() -> None:
    node = FakeNode()
    lone = App("shop", connect_seconds=0.05)

    @lone.handler("q")
    async def q() -> None: ...

    lone.node = node.url
    with pytest.raises(Unavailable):
        await q.enqueue()
    async with node:
        lone._settings["connect_seconds"] = 5.0
        await q.enqueue()
        await lone.close()


@pytest.mark.parametrize(
    ("refusals", "outcome"),
    [
        ([StoreUnavailable, StoreUnavailable, StoreUnavailable], "nothing"),
        ([None, StoreUnavailable, StoreUnavailable], "unknown"),
        ([StoreUnavailable, OutcomeUnknown, StoreUnavailable], "unknown"),
        ([StoreUnavailable, StoreUnavailable, None], "unknown"),
    ],
)
@in_a_loop
async def test_a_batch_of_several_messages_says_nothing_only_if_that_is_true_of_all(
    refusals: list[type[MaitredError] | None], outcome: str
) -> None:
    async with a_node() as node:
        left = iter(refusals)

        async def refuse(_: Add) -> None:
            kind = next(left)
            if kind is not None:
                raise kind("The store is away.")

        node.before[Add] = refuse
        with pytest.raises(MaitredError) as raised:
            await thumbnail.enqueue_many(thumbnail.call("u", size) for size in range(25_000))
        assert raised.value.outcome == outcome
        assert isinstance(raised.value, OutcomeUnknown) == (outcome == "unknown")
        added = sum(len(one.waiting) for one in [node.partition("thumbnails")])
        assert f"{added:,} were added" in str(raised.value) or not added
