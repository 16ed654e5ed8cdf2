"""The node's log about workers that go and return, lost leases, dead letters and refusals."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred import App, errors
from maitred.matching import effects
from maitred.matching.attempt_proofs import holder_of
from maitred.matching.failures import kind_of
from maitred.node.partition_log import (
    BACK,
    BURST_LINES,
    GATHER_SECONDS,
    GONE,
    LEFT,
    QUEUES_SHOWN,
    TOGETHER_LINES,
    WORKERS_GATHERED,
    PartitionLog,
)
from maitred.node.refusal_log import CAUSES_MAX, QUIET_SECONDS, ROUTINE, SERIOUS, RefusalLog
from maitred.protocol.refusals import encode_error
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.outcomes import failure
from maitred.worker.worker import Worker
from tests.node.in_process import RecordedLog, in_a_loop, node, until
from tests.worker.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maitred.node.driver_shell import DriverShell
    from maitred.node.owned import Owned


class Clock:
    """The part of a loop that the log uses, by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        self.timers.append((when, callback))

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        due = [callback for when, callback in self.timers if when <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for callback in due:
            callback()


class Partitions:
    """Partitions that notice things, and the log of their shard."""

    def __init__(self) -> None:
        self.log, self.clock = RecordedLog(), Clock()
        shell = SimpleNamespace(log=self.log, loop=self.clock)
        self._written = PartitionLog(cast("DriverShell", shell)).carry_out

    def notice(self, effect: Any, queue: str = "mails", partition: int = 0) -> None:  # noqa: ANN401
        key = SimpleNamespace(namespace="shop", queue=queue, partition=partition)
        self._written[type(effect)](cast("Owned", SimpleNamespace(key=key)), effect)


def test_dead_letters_are_logged_one_by_one_and_then_counted() -> None:
    partitions = Partitions()
    _, body = failure("ValueError", "the message is not for this log")
    for number in range(500):
        partitions.notice(effects.Buried(number, 4, body), partition=2)
    assert len(partitions.log.lines) == BURST_LINES
    assert partitions.log.lines[0] == (
        "warning",
        "a task became a dead letter",
        {
            "namespace": "shop",
            "queue": "mails",
            "task": "shop/mails/2/0",
            "attempts": 4,
            "error": "ValueError",
        },
    )
    partitions.notice(effects.Buried(1, 1, body), queue="other")
    assert partitions.log.lines[-1][2]["queue"] == "other"
    partitions.clock.pass_seconds(1.0)
    partitions.notice(effects.Buried(1, 1, body))
    assert partitions.log.lines[-1][2]["unlogged"] == 500 - BURST_LINES


def test_ten_thousand_dying_queues_do_not_fill_the_log() -> None:
    partitions = Partitions()
    _, body = failure("ValueError", "")
    for number in range(10_000):
        partitions.notice(effects.Buried(1, 1, body), queue=f"q{number}")
    assert len(partitions.log.lines) == TOGETHER_LINES


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (failure("ValueError", "no")[1], "ValueError"),
        (failure("x" * 10_000, "no")[1], "x" * 100),
        (b"", "unknown"),
        (b"\xc1", "unknown"),
        (b"\x90", "unknown"),
        (b"\x91\xa1\xff", "unknown"),
    ],
)
def test_the_kind_of_a_failure_is_bounded_whatever_a_worker_reports(body: bytes, kind: str) -> None:
    assert kind_of(body) == kind


def test_what_many_roots_notice_of_a_worker_is_one_line() -> None:
    partitions = Partitions()
    for number in range(QUEUES_SHOWN + 3):
        partitions.notice(effects.WorkerGone(b"a" * 16, "ant", orderly=False), queue=f"q{number}")
    partitions.notice(effects.WorkerGone(b"b" * 16, "bee", orderly=True))
    assert not partitions.log.lines
    partitions.clock.pass_seconds(GATHER_SECONDS)
    gone, left = partitions.log.lines
    assert gone[:2] == ("warning", GONE)
    assert gone[2]["worker"] == "ant"
    assert gone[2]["session"] == "61616161"
    assert gone[2]["queues"] == [f"shop/q{number}" for number in range(QUEUES_SHOWN)]
    assert gone[2]["other_queues"] == 3
    assert left[:2] == ("info", LEFT)
    assert left[2]["queues"] == ["shop/mails"]
    partitions.notice(effects.WorkerBack(b"a" * 16, "ant", 62.04))
    partitions.clock.pass_seconds(GATHER_SECONDS)
    assert partitions.log.lines[2][:2] == ("info", BACK)
    assert partitions.log.lines[2][2]["away_seconds"] == 62.0


def test_a_flood_of_workers_is_bounded_and_counted() -> None:
    partitions = Partitions()
    many = WORKERS_GATHERED + 500
    for number in range(many):
        partitions.notice(effects.WorkerGone(number.to_bytes(16, "big"), "w", orderly=False))
    partitions.clock.pass_seconds(GATHER_SECONDS)
    assert len(partitions.log.lines) == BURST_LINES
    partitions.clock.pass_seconds(1.0)
    partitions.notice(effects.WorkerGone(b"z" * 16, "w", orderly=False))
    partitions.clock.pass_seconds(GATHER_SECONDS)
    counted = sum(1 + line[2].get("unlogged", 0) for line in partitions.log.lines)
    assert counted == many + 1


def test_leases_that_ended_name_the_worker_and_the_number_of_tasks() -> None:
    partitions = Partitions()
    partitions.notice(effects.LeasesEnded(holder_of(b"a" * 16, "cook"), "ant", 7), partition=3)
    assert partitions.log.lines == [
        (
            "warning",
            "leases ended: their worker was not heard of",
            {
                "namespace": "shop",
                "queue": "mails",
                "partition": 3,
                "tasks": 7,
                "worker": "ant",
                "session": "61616161",
            },
        )
    ]


# Refusals


def test_refusals_are_one_line_for_each_cause_with_their_number() -> None:
    log, refused = RecordedLog(), Counter[str]()
    refusals = RefusalLog(refused, log)
    refusals.look(0.0)
    assert not log.lines
    refused["overloaded"] += 1_000
    refused["invalid-name"] += 2
    refused["cancelled"] += 3
    refusals.look(1.0)
    assert log.lines == [
        ("warning", "requests refused", {"code": "overloaded", "requests": 1_000, "total": 1_000}),
        ("info", "requests refused", {"code": "invalid-name", "requests": 2, "total": 2}),
        ("debug", "requests refused", {"code": "cancelled", "requests": 3, "total": 3}),
    ]
    refused["overloaded"] += 5
    for second in range(1, int(QUIET_SECONDS)):
        refusals.look(1.0 + second)
    assert len(log.lines) == 3
    refusals.look(1.0 + QUIET_SECONDS)
    assert log.lines[3:] == [
        ("warning", "requests refused", {"code": "overloaded", "requests": 5, "total": 1_005})
    ]
    refusals.look(100.0)
    assert len(log.lines) == 4, "nothing is said where nothing happened"


def test_no_peer_can_make_more_lines_by_making_up_causes() -> None:
    log = RecordedLog()
    RefusalLog(Counter({f"code-{number}": 1 for number in range(10_000)}), log).look(0.0)
    assert len(log.lines) == CAUSES_MAX


@in_a_loop
async def test_unknown_codes_that_other_shards_answer_are_counted_together(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        await running.ready()
        (connection,) = running.shard.connections
        for number in range(3):
            made_up = errors.RemoteError("Of a later release.", code=f"made-up-{number}")
            connection.refuse(1, made_up)
            connection.pass_error(1, encode_error(made_up))
        assert running.shard.errors == {"other": 6}


def test_causes_are_known_codes() -> None:
    assert errors.StoreFull.code in SERIOUS
    assert errors.TokenExpired.code in SERIOUS
    assert errors.QueueDeleted.code in ROUTINE
    assert SERIOUS.isdisjoint(ROUTINE)


@in_a_loop
async def test_a_shard_logs_what_it_refuses_also_to_strangers(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        running.shard.errors["permission-denied"] += 7
        client.close()

        def told() -> list[dict[str, Any]]:
            return [fields for _, event, fields in running.log.lines if event == "requests refused"]

        await until(lambda: bool(told()))
        assert told() == [{"code": "permission-denied", "requests": 7, "total": 7}]


# With a real worker


@in_a_loop
async def test_a_worker_whose_connection_is_cut_and_one_that_drains(tmp_path: Path) -> None:
    app = App("shop")
    may_end = asyncio.Event()

    @app.handler("mails")
    async def mail() -> None:
        await may_end.wait()

    @app.handler("prints")
    async def print_() -> None: ...

    async with serving(tmp_path, app, name="ant", lease_seconds=0.5) as shop:
        task = await mail.enqueue()
        await until(lambda: shop.worker.statistics.busy == 1)
        # The worker hangs: it neither attends nor sends heartbeats, and returns.
        shop.worker._heartbeats.stop()
        shop.worker._attending.stop()
        ((level, gone),) = await shop.said(GONE, shop.node.log)
        assert (level, gone["worker"]) == ("warning", "ant")
        assert sorted(gone["queues"]) == ["shop/mails", "shop/prints"]
        ((_, ended), *_) = await shop.said(
            "leases ended: their worker was not heard of", shop.node.log
        )
        assert (ended["queue"], ended["worker"], ended["tasks"]) == ("mails", "ant", 1)
        assert ended["session"] == gone["session"]
        await task.cancel()
        again = Worker(
            (await app.session()).client,
            list(app.handlers.values()),
            WorkerSettings(),
            "ant",
            Surroundings.real(),
            RecordedLog(),
        )
        working = asyncio.create_task(again.run())
        ((level, back),) = await shop.said(BACK, shop.node.log)
        assert (level, back["worker"]) == ("info", "ant")
        assert back["session"] != gone["session"]
        again.stop()
        await working
        ((level, left),) = await shop.said(LEFT, shop.node.log)
        assert (level, left["session"]) == ("info", back["session"])
        may_end.set()  # or the drain of the first worker would wait for the handler
