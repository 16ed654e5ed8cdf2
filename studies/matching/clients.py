"""Producers and workers, with the real selectors: what each process knows, it learned itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing import BacklogHint, selector
from maitred.routing.counts import PartitionCounts
from maitred.routing.names import QueueId

if TYPE_CHECKING:
    from maitred.balancing import Poll
    from maitred.matching.effects import Foreign
    from studies.matching.model import Model
    from studies.matching.place import Place

QUEUE = QueueId("study", "tasks", 1)


class Process:
    """A client process: its selector, and the counts as it knows them."""

    def __init__(self, model: Model) -> None:
        settings = model.settings
        self.model = model
        self.counts = PartitionCounts()
        self.selector = selector(settings.algorithm, model.random, settings.selector)

    def learn(self, counts: PartitionCounts | None) -> None:
        if counts is not None and counts.version > self.counts.version:
            self.counts = counts


class Producer:
    """Adds tasks; whoever is sent away by a partition that takes no more goes elsewhere."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.process = Process(model)

    def add(self, number: int) -> None:
        model, process = self._model, self.process
        write = process.counts.write
        chosen = process.selector.write(QUEUE, write, model.clock.now) if write > 1 else 0
        place = model.place(chosen)
        payload = number.to_bytes(4)
        began = model.started_adding.setdefault(number, model.clock.now)

        def answer(at: Place, first: int, counts: PartitionCounts | None) -> None:
            model.network.send(at, process, answered, first, counts)

        def answered(first: int, counts: PartitionCounts | None) -> None:
            process.learn(counts)
            if first < 0:
                model.refused_adds += 1
                self.add(number)
            else:
                model.acknowledged.append(model.clock.now - began)

        version = process.counts.version
        model.network.send(process, place, place.add, payload, version, answer)


class Poller:
    """One slot of a worker: offers itself, works, and offers itself again."""

    def __init__(self, model: Model, process: Process, number: int) -> None:
        self._model = model
        self.process = process
        self._session = number.to_bytes(4)
        self._poll: Poll | None = None

    def offer(self) -> None:
        model, process = self._model, self.process
        if model.closing:
            return
        counts = process.counts
        self._poll = process.selector.read(QUEUE, counts.read, model.clock.now)
        place = model.place(self._poll.partition)
        model.network.send(process, place, place.offer, self, self._session, counts.version)

    def answered(
        self, found: list[Foreign], hint: tuple[int, float], counts: PartitionCounts | None
    ) -> None:
        model = self._model
        now = model.clock.now
        if self._poll is not None:
            self._poll.done(now, BacklogHint(*hint))
            self._poll = None
        self.process.learn(counts)
        if not found:
            model.empty_polls += 1
            self.offer()
            return
        (task,) = found
        model.begun(task)
        model.clock.at(now + model.work_seconds(), self._done, task)

    def _done(self, task: Foreign) -> None:
        model = self._model
        owner = model.place(task.partition)
        model.network.send(self.process, owner, model.ended, owner, task, self._session)
        self.offer()
