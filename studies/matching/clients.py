"""Producers and workers, with the real selectors: what each process knows, it learned itself."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from maitred.balancing import BacklogHint, selector
from maitred.node.partitions import ANSWER_EARLY_SECONDS
from maitred.protocol.tasks import Add, Added, End, Finish, Offer, Offered
from maitred.routing.counts import PartitionCounts
from maitred.routing.names import QueueId
from maitred.simulation.errors import Violation
from studies.matching.host import Call

if TYPE_CHECKING:
    from msgspec import Struct

    from maitred.balancing import Poll
    from maitred.errors import MaitredError
    from maitred.protocol.tasks import Counts, Given
    from studies.matching.model import Model

QUEUE = QueueId("study", "tasks", 1)


class Process:
    """A client process: its selector, and the counts as it knows them."""

    def __init__(self, model: Model) -> None:
        settings = model.settings
        self.counts = PartitionCounts()
        self.selector = selector(settings.algorithm, model.random, settings.selector)

    def learn(self, counts: Counts | PartitionCounts | None) -> None:
        if counts is not None and counts.version > self.counts.version:
            self.counts = PartitionCounts(counts.read, counts.write, counts.version)


class Producer:
    """Adds tasks; one that a partition does not take goes elsewhere."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.process = Process(model)

    def add(self, number: int) -> None:
        model, process = self._model, self.process
        counts = process.counts
        write = counts.write
        chosen = process.selector.write(QUEUE, write, model.clock.now) if write > 1 else 0
        began = model.started_adding.setdefault(number, model.clock.now)

        def answered(outcome: Struct | MaitredError) -> None:
            if not isinstance(outcome, Added):
                raise Violation(f"Task {number} was not added: {outcome}")
            process.learn(outcome.counts)
            if outcome.first < 0:
                model.refused_adds += 1
                self.add(number)
            else:
                model.acknowledged.append(model.clock.now - began)

        message = Add(*QUEUE, chosen, 0, counts.version, [number.to_bytes(4)])
        Call(model, process, message, answered)


class Poller:
    """One slot of a worker: offers itself, works, and offers itself again."""

    def __init__(self, model: Model, process: Process, number: int) -> None:
        self._model = model
        self.process = process
        self._session = number.to_bytes(16)
        self._patience = ceil((model.settings.offer_seconds + ANSWER_EARLY_SECONDS) * 1000)
        self._poll: Poll | None = None

    def offer(self) -> None:
        model, process = self._model, self.process
        if model.closing:
            return
        counts = process.counts
        self._poll = process.selector.read(QUEUE, counts.read, model.clock.now)
        number = self._poll.partition
        message = Offer(*QUEUE, number, self._patience, counts.version, self._session, "w", 1)
        Call(model, process, message, self._answered)

    def _answered(self, outcome: Struct | MaitredError) -> None:
        if not isinstance(outcome, Offered):
            raise Violation(f"An offer was refused: {outcome}")
        model = self._model
        now = model.clock.now
        if self._poll is not None:
            self._poll.done(now, BacklogHint(max(0, outcome.backlog), outcome.rate))
            self._poll = None
        self.process.learn(outcome.counts)
        if not outcome.tasks:
            model.empty_polls += 1
            self.offer()
            return
        (task,) = outcome.tasks
        model.begun(task)
        model.clock.call_at(now + model.work_seconds(), self._done, task)

    def _done(self, task: Given) -> None:
        end = End(task.sequence, task.attempt, task.proof, body=b"")
        message = Finish(*QUEUE, task.partition, 0, self._session, [end])
        Call(self._model, self.process, message, lambda _: None)
        self.offer()
