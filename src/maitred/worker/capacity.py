"""How many attempts a worker can serve at a time, from how many are served and how many wait.

`Capacity` is told of every task and query that begins and ends, and of every attempt that begins or
ceases to wait for something inside of the worker. Its gauge derives the limit, which bounds the
slots on offer and the queries that come with a pass. Gateways with passes are told of the limit
with every answer and about ten times a second. One timer runs while there is work; it fires late
when the loop is late. `limit_report.py` decides how much of that the worker itself caused, and what
the log says of the limit.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary

from maitred.protocol.query_link import Load
from maitred.worker.gauges import gauge
from maitred.worker.limit_report import REMEDIES, SENTENCES, LimitReport, explain
from maitred.worker.pools import CallPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from maitred.app.attempt import Attempt
    from maitred.logs import Logger
    from maitred.settings import WorkerSettings
    from maitred.surroundings import CpuTimes
    from maitred.worker.limit_report import LimitReason
    from maitred.worker.pools import Caller, PooledCall
    from maitred.worker.statistics import WorkerStatistics

TICK_SECONDS: Final = 0.05
"""Seconds between two ticks of the timer while there is work; a loop that is late by as much is
noticed."""

REPORT_TICKS: Final = 2
"""Ticks between two reports to the gateways: one about every 100 ms."""

LATELY_SECONDS: Final = 2.0
"""A gateway that has no query here and sent its last one longer ago than this gets no reports."""

SLACK_SHARE: Final = 8
"""The worker accepts this fraction (1/8) of its limit beyond it: the limit that gateways know is a
moment old, and a limit that moves by one or two is no reason to refuse a query. A limit below 8 has
no such margin."""


@dataclass(slots=True, eq=False)
class Sender:
    """A gateway's link, as far as the worker's capacity goes."""

    send: Callable[[Load], None]
    """Sends a report to the gateway."""
    inside: int = 0
    """Its queries that are served or wait here."""
    claim: int = 0
    """Queries that the gateway says it has in flight to this worker."""
    number: int = 0
    """Number of the last report."""
    used_at: float = 0.0
    """When its last query with a pass came."""


class Capacity:
    """Knows how many attempts this worker serves and how many of them wait, and from that how many
    it can take; a meter for its attempts (see `app.attempt.Meter`)."""

    def __init__(
        self,
        settings: WorkerSettings,
        statistics: WorkerStatistics,
        grown: Callable[[], None],
        log: Logger | None = None,
        cpu_times: Callable[[], CpuTimes] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.threads = CallPool(settings.threads or settings.slots, self._moved)
        """For plain functions."""
        self._slots = settings.slots
        self._statistics = statistics
        self._grown = grown
        """Called when the limit has grown."""
        self._gauge = gauge(settings, self.loop.time())
        self.limit = self._gauge.limit(self.loop.time())
        """How many attempts the worker may serve at a time."""
        self.inside = 0
        """Attempts whose handlers have begun and not ended."""
        self.waiting = 0
        """Of these, those that wait for something inside of the worker."""
        self._by_pass = 0
        self._claims = 0
        self._senders: dict[Sender, None] = {}
        """Gateways that sent a query with a pass lately."""
        self._pools: WeakKeyDictionary[Executor, CallPool] = WeakKeyDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._ticks = 0
        self._log = log
        self._cpu_times = cpu_times
        """Without it, a late loop always counts as caused by the worker itself."""
        self._cpu: CpuTimes | None = None
        """The CPU times at the last tick; None while there is no timer."""
        self._report = LimitReport()

    def __repr__(self) -> str:
        limit = f"limit {self.limit} of {self._slots} ({self.reason})"
        return f"<Capacity {limit}, {self.serving} served, {self.waiting} waiting>"

    def stop(self) -> None:
        """Send no more reports."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._senders.clear()

    @property
    def reason(self) -> LimitReason:
        """Why the limit is not higher."""
        return self._report.reason

    @property
    def serving(self) -> int:
        """Attempts that run, without those that wait."""
        return self.inside - self.waiting

    @property
    def room(self) -> int:
        """Slots that may be offered."""
        limit, slots = self.limit, self._slots
        return (limit if limit < slots else slots) - self._statistics.busy  # noqa: FURB136 - `min` is slow

    @property
    def most(self) -> int:
        """From this number of busy slots on, a query with a pass is refused."""
        return min(self._slots, self.limit + self.limit // SLACK_SHARE)

    # Attempts

    def begun(self, attempt: Attempt, now: float) -> None:
        """Count an attempt whose handler is called."""
        self.inside = inside = self.inside + 1
        waiting = self.waiting
        self._gauge.observe(inside - waiting, waiting, now)
        claimed = self._claims + self._statistics.busy - self._by_pass
        if claimed > inside:  # otherwise it was just told
            self._gauge.claimed(claimed)
        attempt.meter = self
        if self._timer is None:
            self._start()

    def ended(self, attempt: Attempt, now: float, *, good: bool) -> None:
        """Count the end of an attempt, whatever its outcome."""
        self.inside -= 1
        if attempt.counted:
            attempt.counted = False
            self.waiting -= 1
        attempt.meter = None
        limit = self._gauge.observe_end(self.inside - self.waiting, self.waiting, now, good=good)
        if limit != self.limit:
            self._set_limit(limit)

    def enter_thread(self, attempt: Attempt) -> PooledCall:
        """Count a call that is to run in one of the worker's own threads."""
        call = self.threads.enter(attempt)
        self._moved(attempt)
        return call

    # From inside of handlers; also in threads

    def wait(self, attempt: Attempt) -> None:
        """Count an attempt as waiting for something inside of the worker."""
        self._on_loop(self._wait, attempt, 1)

    def go_on(self, attempt: Attempt) -> None:
        """Count an attempt that waited as running again."""
        self._on_loop(self._wait, attempt, -1)

    def submitted(self, attempt: Attempt, executor: Executor) -> PooledCall:
        """Count a call of an attempt that goes to this executor; on the loop."""
        pool = self._pools.get(executor)
        if pool is None:
            workers = getattr(executor, "_max_workers", None)
            workers = workers if isinstance(workers, int) else None
            pool = self._pools[executor] = CallPool(workers, self._moved)
        call = pool.enter(attempt)
        self._moved(attempt)
        return call

    def finished(self, executor: Executor, call: PooledCall) -> None:
        """Count the end of a call, also of one that was never made; from any thread."""
        self._on_loop(self._finished, executor, call)

    def _finished(self, executor: Executor, call: PooledCall) -> None:
        pool = self._pools.get(executor)
        if pool is not None:
            self.left_pool(pool, call)

    def left_pool(self, pool: CallPool, call: PooledCall) -> None:
        """Count the end of a call in that pool."""
        pool.leave(call)
        self._moved(call.caller)

    def _on_loop(self, function: Callable[..., None], *args: object) -> None:
        try:
            here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if here:
            function(*args)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(function, *args)

    def _wait(self, attempt: Attempt, more: int) -> None:
        attempt.waits += more
        self._moved(attempt)

    def _moved(self, caller: Caller) -> None:
        """Count an attempt anew as running or waiting: its calls or its waits have changed."""
        attempt = cast("Attempt", caller)
        if attempt.meter is not self:  # the attempt has ended
            return
        waits = attempt.waits
        if (waits and waits >= attempt.calls) or (attempt.queued and not attempt.calls):
            if not attempt.counted:
                attempt.counted = True
                self.waiting += 1
                self._gauge.observe(self.inside - self.waiting, self.waiting, self.loop.time())
        elif attempt.counted:
            attempt.counted = False
            self.waiting -= 1
            self._gauge.observe(self.inside - self.waiting, self.waiting, self.loop.time())

    # Gateways

    def asked(self, sender: Sender, in_flight: int, now: float, *, pressed: bool) -> bool:
        """Note a query that comes with a pass; return whether there is room for it."""
        if sender not in self._senders:
            self._senders[sender] = None
            if self._timer is None:
                self._start()
        sender.used_at = now
        claim = min(in_flight, self._slots)
        self._claims += claim - sender.claim
        sender.claim = claim
        self._gauge.claimed(self._claims + self._statistics.busy - self._by_pass, pressed=pressed)
        self._look(now)
        return self._statistics.busy < self.most

    def entered(self, sender: Sender) -> None:
        """Count a query that this sender has in a slot."""
        sender.inside += 1
        self._by_pass += 1

    def left(self, sender: Sender) -> None:
        """Count the end of a query of this sender."""
        sender.inside -= 1
        self._by_pass -= 1
        self.answered(sender)

    def answered(self, sender: Sender) -> None:
        """Count one query less in flight for this sender, until it says otherwise with its next
        query."""
        if sender.claim:
            sender.claim -= 1
            self._claims -= 1

    def gone(self, sender: Sender) -> None:
        """Forget a sender whose link is closed."""
        self._claims -= sender.claim
        sender.claim = 0
        self._senders.pop(sender, None)

    def load(self, sender: Sender) -> Load:
        """Return the load that this sender is told with an answer."""
        sender.number += 1
        return Load(
            sender.number,
            min(self.limit, self._slots),
            self.inside - self.waiting,
            self.waiting,
            self._gauge.mean_service_seconds,
            sender.inside,
            max(1, len(self._senders)),
        )

    # Time

    def _look(self, now: float) -> None:
        limit = self._gauge.limit(now)
        if limit != self.limit:
            self._set_limit(limit)

    def _set_limit(self, limit: int) -> None:
        grown, self.limit = limit > self.limit, limit
        if grown:
            self._grown()

    def _start(self) -> None:
        if self._cpu is None and self._cpu_times is not None:
            self._cpu = self._cpu_times()
        self._due = self.loop.time() + TICK_SECONDS
        self._timer = self.loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.loop.time()
        self._late(now - self._due)
        self._look(now)
        self._say(now)
        self._ticks += 1
        if self._ticks % REPORT_TICKS == 0:
            for sender in list(self._senders):
                if sender.inside or now - sender.used_at < LATELY_SECONDS:
                    sender.send(self.load(sender))
                else:
                    self.gone(sender)
        if self.inside or self._senders:
            self._start()
        else:
            self._cpu = None

    def _late(self, seconds: float) -> None:
        if self._cpu_times is not None and self._cpu is not None:
            elapsed = max(seconds, 0.0) + TICK_SECONDS
            before, self._cpu = self._cpu, self._cpu_times()
            in_threads = self.threads.active + self.threads.waiting
            on_loop = not in_threads or self.inside > in_threads
            lateness = explain(seconds, elapsed, before, self._cpu, on_loop=on_loop)
            self._statistics.starved_seconds += lateness.stolen_seconds
            self._report.stolen(lateness.stolen_seconds, elapsed)
            seconds = lateness.own_seconds
            if seconds > TICK_SECONDS:
                self._report.late_cause = lateness.cause
        self._gauge.lagged(seconds)

    def _say(self, now: float) -> None:
        reason = self._report.look(self._gauge.cause, now)
        if reason is None or self._log is None:
            return
        say = self._log.warning if reason in REMEDIES else self._log.info
        facts = {"remedy": REMEDIES[reason]} if reason in REMEDIES else {}
        limit = min(self.limit, self._slots)
        say(SENTENCES[reason], limit=limit, slots=self._slots, reason=reason, **facts)
