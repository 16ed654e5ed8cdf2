"""A queue with its partitions, producers and workers, run on a virtual clock.

Producers and workers use the real selectors, one for each client process, and the answers to polls
carry hints. Arrivals and services depend on the seed alone, so that every algorithm meets the same
tasks and differences are the algorithm's.

When the last task is done, workers stop polling and the run goes on until the last poll has ended.
Then everything has to be as it was in the beginning; and in every run no task is lost or served
twice, and no poller gets lost. A run in which that does not hold raises `Violation`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from maitred.balancing import FewestPolls, selector
from maitred.routing.names import QueueId
from maitred.routing.tree import parent
from maitred.simulation.errors import Violation
from maitred.simulation.loop import LoopLimits, SimulatedLoop
from studies.queue_model.measures import Gauge, Measures, Spread, Waits
from studies.queue_model.offers import TAKEN, Clock, Supply, Task
from studies.queue_model.partition import Counters, Partition
from studies.queue_model.queueing import single_queue_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.balancing import BacklogHint, PartitionSelector, Poll
    from studies.queue_model.settings import ModelSettings

QUEUE = QueueId("study", "tasks", 1)

ROUNDING_SECONDS = 1e-3
"""Timers of one deadline that were set at different times differ by rounding; this is far more."""


def run_model(settings: ModelSettings, seed: int) -> Measures:
    """One run; raises `Violation` if a task or a poller was lost or used twice."""
    loop = SimulatedLoop(LoopLimits(max_virtual_seconds=settings.run_seconds_max))
    try:
        measures: Measures = loop.run_until_complete(play(loop, settings, seed))
        return measures
    finally:
        loop.close()


async def play(loop: SimulatedLoop, settings: ModelSettings, seed: int) -> Measures:
    """The same on a loop that runs already, which it has to itself until it is done."""
    finished = loop.create_future()

    def failed(_: object, context: dict[str, object]) -> None:
        # asyncio would log what a callback raises, and go on.
        if not finished.done():
            finished.set_exception(_as_violation(context))

    previous = loop.get_exception_handler()
    loop.set_exception_handler(failed)
    try:
        model = Model(loop, settings, seed, lambda: finished.set_result(None))
        model.start()
        await finished
        return model.measures()
    finally:
        loop.set_exception_handler(previous)


def _as_violation(context: dict[str, object]) -> BaseException:
    error = context.get("exception")
    return error if isinstance(error, BaseException) else Violation(str(context.get("message")))


class Model:
    """The world of one run."""

    def __init__(
        self,
        clock: Clock,
        settings: ModelSettings,
        seed: int,
        finished: Callable[[], object],
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.closing = False
        self.empty_polls = 0
        self._finished = finished
        self._counters = Counters()
        self.partitions = partition_tree(clock, settings, self._counters)
        self._backlog, self._arrivals = draw_tasks(settings, random.Random(f"tasks {seed}"))
        self.tasks = self._backlog + self._arrivals
        """Those that are measured; more may come after them."""
        self._later = LaterTasks(settings, random.Random(f"later {seed}"), len(self.tasks))
        self._to_start = self._undone = len(self.tasks)
        self._gauge = Gauge(settings.pollers, waiting=len(self._backlog))
        self._measured: Measures | None = None

        source = random.Random(f"picks {seed}")
        self._producers = [
            selector(settings.algorithm, source, settings.selector)
            for _ in range(settings.producer_clients)
        ]
        self._workers = [
            selector(settings.algorithm, source, settings.selector)
            for _ in range(settings.worker_clients)
        ]
        self._which_producer = random.Random(f"producers {seed}")
        self._pollers = [
            Poller(self, self._workers[number % settings.worker_clients])
            for number in range(settings.pollers)
        ]
        self._writes = [0] * settings.write_partitions
        self._polls = [0] * settings.read_partitions

    def start(self) -> None:
        begin = iter(self._backlog)
        for partition, backlog in zip(self.partitions, self.settings.initial_backlog, strict=False):
            partition.begin_with([next(begin) for _ in range(backlog)])
        for poller in self._pollers:
            poller.poll()
        self.clock.call_later(self._arrivals[0].arrived_at, self._arrive_measured, 0)

    def _arrive_measured(self, number: int) -> None:
        self._arrive(self._arrivals[number])
        if number + 1 < len(self._arrivals):
            wait = self._arrivals[number + 1].arrived_at - self.clock.time()
            self.clock.call_later(wait, self._arrive_measured, number + 1)
        else:
            self._arrive_later(None)

    def _arrive_later(self, task: Task | None) -> None:
        """Go on until the last measured task has started."""
        if not self._to_start:
            return
        if task is not None:
            self._undone += 1
            self._arrive(task)
        following = self._later.draw(self.clock.time())
        if following is not None:
            wait = following.arrived_at - self.clock.time()
            self.clock.call_later(wait, self._arrive_later, following)

    def _arrive(self, task: Task) -> None:
        now = self.clock.time()
        self._gauge.change(now, waiting=1)
        producer = self._which_producer.choice(self._producers)
        partition = producer.write(QUEUE, self.settings.write_partitions, now)
        self._writes[partition] += 1
        self.clock.call_later(self.settings.network_seconds, self.partitions[partition].add, task)

    # What pollers report.

    def polled(self, partition: int) -> None:
        self._polls[partition] += 1

    def started(self, task: Task) -> None:
        if task.started_at is not None:
            raise Violation(f"Task {task.number} was given to two polls.")
        now = self.clock.time()
        task.started_at = now
        self._gauge.change(now, idle=-1, waiting=-1)
        if task.number < len(self.tasks):
            self._to_start -= 1
            if not self._to_start:
                self._measured = self._measure()

    def done(self, task: Task) -> None:
        if task.finished:
            raise Violation(f"Task {task.number} was served twice.")
        task.finished = True
        self._gauge.change(self.clock.time(), idle=1)
        self._undone -= 1
        if not self._undone:
            self.closing = True

    def stopped(self) -> None:
        """A poller stopped; the last one ends the run, a moment later."""
        if all(poller.state == "stopped" for poller in self._pollers):
            # The answer to the last handover climbs from the poll's home to where the task was,
            # and from there goes down to the task's home.
            rest = 2 * (len(self.partitions) + 1) * self.settings.network_seconds
            rest += self.settings.store_write_seconds + ROUNDING_SECONDS
            self.clock.call_later(rest, self._end)

    def _end(self) -> None:
        self.check()
        self._finished()

    def check(self) -> None:
        """Raise `Violation` unless everything is as it was in the beginning."""
        wrong = [line for partition in self.partitions for line in partition.left_over()]
        wrong += [f"task {task.number} was lost" for task in self.tasks if not task.finished]
        wrong += [f"a poller is {p.state}" for p in self._pollers if p.state != "stopped"]
        wrong += [
            f"{chosen.entries} polls are still counted"
            for chosen in self._workers
            if isinstance(chosen, FewestPolls) and chosen.entries
        ]
        if self._undone:
            wrong.append(f"{self._undone} tasks are not done")
        if wrong:
            raise Violation("After the last task: " + "; ".join(wrong[:10]) + ".")

    def measures(self) -> Measures:
        """Of the tasks that are measured, at the moment the last of them was started."""
        if self._measured is None:
            raise Violation("The run ended before every task was started.")
        return self._measured

    def _measure(self) -> Measures:
        waits = [waited_seconds(task) for task in self.tasks]
        span = max(task.arrived_at + wait for task, wait in zip(self.tasks, waits, strict=True))
        ideal = single_queue_waits(
            ((task.arrived_at, task.service_seconds) for task in self.tasks),
            self.settings.pollers,
        )
        by_home = [0.0] * self.settings.read_partitions
        for task, wait in zip(self.tasks, waits, strict=True):
            by_home[task.home] += wait
        capacity = span * self.settings.pollers
        return Measures(
            waits=Waits.of(waits),
            ideal_waits=Waits.of(ideal),
            idle_while_waiting=self._gauge.idle_while_waiting / capacity,
            avoidable_idle=self._gauge.avoidable / capacity,
            span_seconds=span,
            ideal_span_seconds=max(
                task.arrived_at + wait for task, wait in zip(self.tasks, ideal, strict=True)
            ),
            writes=Spread.of(self._writes),
            polls=Spread.of(self._polls),
            waiting=tuple(wait / (sum(by_home) or 1.0) for wait in by_home),
            tasks=len(self.tasks),
            arrivals=len(self._arrivals),
            stored=sum(task.stored for task in self._arrivals),
            sync_matches=sum(not task.stored for task in self.tasks),
            poll_forwards=self._counters.poll_forwards,
            task_forwards=self._counters.task_forwards,
            refused_handovers=self._counters.refusals,
            empty_polls=self.empty_polls,
        )


class Poller:
    """One slot of a worker: polls, serves what it is given, polls again."""

    def __init__(self, model: Model, chooser: PartitionSelector) -> None:
        self.state = "new"
        self._model = model
        self._selector = chooser

    def poll(self) -> None:
        model = self._model
        if model.closing:
            self.state = "stopped"
            model.stopped()
            return
        self.state = "polling"
        clock, settings = model.clock, model.settings
        token = self._selector.read(QUEUE, settings.read_partitions, clock.time())
        model.polled(token.partition)
        home = model.partitions[token.partition]
        network = settings.network_seconds

        def deliver(task: Task, answer: Callable[[bool], None]) -> None:
            clock.call_later(network, self._answered, token, task, home.hint())
            answer(TAKEN)

        def empty() -> None:
            clock.call_later(network, self._answered, token, None, home.hint())

        deadline = clock.time() + network + settings.poll_timeout_seconds
        clock.call_later(network, home.poll, Supply(deadline, deliver, empty))

    def _answered(self, token: Poll, task: Task | None, hint: BacklogHint) -> None:
        model = self._model
        if self.state != "polling":
            raise Violation(f"A poll was answered twice: the poller is {self.state}.")
        token.done(model.clock.time(), hint)
        if task is None:
            model.empty_polls += not model.closing
            self.poll()
            return
        self.state = "serving"
        model.started(task)
        model.clock.call_later(task.service_seconds, self._served, task)

    def _served(self, task: Task) -> None:
        self._model.done(task)
        self.poll()


def partition_tree(clock: Clock, settings: ModelSettings, counters: Counters) -> list[Partition]:
    """All partitions, each knowing the one it forwards to."""
    partitions: list[Partition] = []
    for number in range(settings.read_partitions):
        above = parent(number, settings.degree)
        forwards_to = None if above is None else partitions[above]
        partitions.append(Partition(clock, number, forwards_to, settings, counters))
    return partitions


def draw_tasks(settings: ModelSettings, source: random.Random) -> tuple[list[Task], list[Task]]:
    """The tasks of the initial backlog, and those that arrive, in order."""

    def task(number: int, arrived_at: float) -> Task:
        return Task(number, arrived_at, service_seconds(settings, source))

    first = sum(settings.initial_backlog)
    backlog = [task(number, 0.0) for number in range(first)]
    arrivals = []
    now = 0.0
    for number, rate in enumerate(_rates(settings.phases, settings)):
        now += source.expovariate(rate)
        arrivals.append(task(first + number, now))
    return backlog, arrivals


class LaterTasks:
    """Tasks that come after the measured ones, to keep the queue as busy as it was."""

    def __init__(self, settings: ModelSettings, source: random.Random, first: int) -> None:
        self._next = first
        self._end = first + settings.tasks_after_max
        self._settings = settings
        self._source = source
        self._rate_per_second = settings.rate_per_second * settings.phases[-1][1]

    def draw(self, now: float) -> Task | None:
        """The next one, or None if there were enough."""
        if self._next >= self._end:
            return None
        wait = self._source.expovariate(self._rate_per_second)
        self._next += 1
        length = service_seconds(self._settings, self._source)
        return Task(self._next - 1, now + wait, length)


def service_seconds(settings: ModelSettings, source: random.Random) -> float:
    """How long a task takes."""
    if settings.service == "constant":
        return settings.service_seconds
    return source.expovariate(1 / settings.service_seconds)


def _rates(phases: Sequence[tuple[float, float]], settings: ModelSettings) -> list[float]:
    """The arrival rate before each task."""
    rates: list[float] = []
    passed = 0.0
    for share, factor in phases:
        passed += share
        until = round(passed * settings.tasks)
        rates += [settings.rate_per_second * factor] * (until - len(rates))
    return rates


def waited_seconds(task: Task) -> float:
    if task.started_at is None:
        raise Violation(f"Task {task.number} was never started.")
    return task.started_at - task.arrived_at
