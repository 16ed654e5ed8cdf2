"""One run: a queue of real partitions on hosts, its producers and its workers, in virtual time.

In every run: each task is done once, and (unless something was late) given out once; nobody waits
at an empty partition longer than the bound while a task waits elsewhere; and at the end nothing is
left, in memory or in the store. A run in which that does not hold raises `Violation`.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from maitred.matching.records import (
    Changes,
    PartitionKey,
    Record,
    Segment,
    Terms,
    encode_records,
)
from maitred.matching.scaler import Scaler
from maitred.matching.task import Ticket
from maitred.routing.counts import PartitionCounts
from maitred.simulation.disk import Contents
from maitred.simulation.errors import Violation
from studies.matching.clients import Poller, Process, Producer
from studies.matching.clock import Clock, Network
from studies.matching.measures import (
    Gauge,
    Latency,
    MatchingMeasures,
    PartitionMeasures,
)
from studies.matching.place import Place
from studies.matching.writer import Writer

if TYPE_CHECKING:
    from maitred.matching.effects import Foreign
    from studies.matching.settings import MatchingModel

SEGMENT_TASKS = 100
"""Of a backlog that lies in the store from the start, as many in each segment."""

REST_SECONDS = 2.0
"""After the last task: in this time everything has come to rest."""


def run_matching(settings: MatchingModel, seed: int, *, check: bool = True) -> MatchingMeasures:
    """One run; with `check` it raises `Violation` if the bound does not hold."""
    model = Model(settings, seed)
    try:
        model.run()
        if check:
            model.check_bound()
        return model.measures()
    finally:
        model.close()


class Model:
    """The world of one run."""

    def __init__(self, settings: MatchingModel, seed: int) -> None:
        self.settings = settings
        self.random = Random(f"matching {seed}")
        self.clock = Clock()
        self.network = Network(
            self.clock, settings.network_seconds, settings.network_jitter, Random(f"net {seed}")
        )
        self.contents = Contents(self.random)
        self.gauge = Gauge()
        self.closing = False
        self.started_adding: dict[int, float] = {}
        self.acknowledged: list[float] = []
        self.refused_adds = self.empty_polls = self.polls_with_task = 0
        self.ends_too_late = self.visits_lost = 0
        self.executions: dict[int, int] = {}
        self._latency: list[float] = []
        self._sync: dict[int, bool] = {}
        self._undone: set[int] = set()
        self._arrivals = Random(f"arrivals {seed}")
        self._work = Random(f"work {seed}")
        self._writers = [
            Writer(self.clock, self.contents, settings.commit_seconds)
            for _ in range(settings.hosts)
        ]
        self._backlog = sum(settings.backlog)
        self._fill()
        self._places: list[Place] = []
        self.counts = PartitionCounts(settings.read, settings.write, 1)
        self.place(settings.read - 1)
        self._read_max = settings.read
        self._read_at_end = settings.read
        self._scaler = Scaler()
        processes = [Process(self) for _ in range(settings.worker_clients)]
        self._pollers = [
            Poller(self, processes[number % len(processes)], number)
            for number in range(settings.pollers)
        ]
        self._producers = [Producer(self) for _ in range(settings.producer_clients)]
        # They have been at work for a while: what they would learn first they know.
        for process in (*processes, *(producer.process for producer in self._producers)):
            process.learn(self.counts)

    def place(self, number: int) -> Place:
        """The partition of that number, which comes to be when it is first asked for."""
        while len(self._places) <= number:
            new = len(self._places)
            writer = self._writers[new % self.settings.hosts]
            self._places.append(Place(self, _key(new), writer, self.counts))
            self._places[-1].touch()
        return self._places[number]

    def _fill(self) -> None:
        """Tasks that are in the store already; they are numbered after those that will come."""
        number = self.settings.tasks
        for partition, tasks in enumerate(self.settings.backlog):
            key = _key(partition)
            range_id = self.contents.own(key).range_id
            records = []
            for sequence in range(1, tasks + 1):
                self.started_adding[number] = 0.0
                self.gauge.task_waits(number, 0.0)
                self._undone.add(number)
                self._sync[number] = False
                records.append(
                    Record(sequence, 2, 0, 0.0, 0.0, Terms(), number.to_bytes(4)),
                )
                number += 1
            changes = Changes(key, range_id, tasks, clean=True)
            for at in range(0, tasks, SEGMENT_TASKS):
                some = records[at : at + SEGMENT_TASKS]
                changes.segments.append(
                    Segment(2, some[0].sequence, some[-1].sequence, len(some), encode_records(some))
                )
            self.contents.commit([changes])

    # Running

    def run(self) -> None:
        settings = self.settings
        for poller in self._pollers:
            # Not all at once: nobody starts a hundred workers in one instant.
            self.clock.at(0.01 * self.random.random(), poller.offer)
        self._undone.update(range(settings.tasks))
        at = 0.01
        for number, rate in enumerate(_rates(settings)):
            at += self._arrivals.expovariate(rate)
            producer = self._producers[self._arrivals.randrange(len(self._producers))]
            self.clock.at(at, producer.add, number)
        self.clock.at(at, self._arrivals_end)
        if settings.scaling.adaptive:
            self.clock.at(settings.scaling.look_seconds, self._scale)
        if not self.clock.run(settings.run_seconds_max):
            raise Violation(f"After {self.clock.now:,.0f} s {len(self._undone)} tasks wait still.")
        self._span = self.clock.now
        self.closing = True
        self.clock.run(self._span + REST_SECONDS)
        for place in self._places:
            for offer in list(place.partition.offers.waiting()):
                if not offer.hops:
                    place.partition.matcher.withdraw(offer, self.clock.now)
            place.touch()
        self.clock.run(self._span + 2 * REST_SECONDS)
        self._check_rest()

    def close(self) -> None:
        """Break the reference cycles through tasks, so that the model can be freed from memory."""
        for place in self._places:
            place.partition.leave()

    def _arrivals_end(self) -> None:
        self._read_at_end = self.counts.read

    def work_seconds(self) -> float:
        mean = self.settings.work_seconds
        return mean if self.settings.work == "constant" else self._work.expovariate(1 / mean)

    def _scale(self) -> None:
        """What the caretaker of the root does, with the real scaler."""
        if self.closing:
            return
        now = self.clock.now
        places = self._places[: self.counts.read]
        rate = sum(place.partition.intake.added.per_second(now) for place in places)
        drained = {
            place.number: place.partition.counts.version
            for place in places
            if place.partition.drained
        }
        scaling = self.settings.scaling
        wanted = self._scaler.wanted(self.counts, rate, drained, scaling, now)
        if wanted is not None:
            read, write = wanted
            counts = self.counts.changed(read=read, write=write, drained=drained)
            root = self._places[0]

            def written(_: object) -> None:
                self.counts = counts
                self._read_max = max(self._read_max, counts.read)
                for place in self._places:
                    self.network.send(root, place, place.learn, counts)

            ticket = Ticket(written, 1)
            root.partition.ledger.set_counts(counts, ticket, now)
            root.partition.tickets.release(ticket)
            root.touch()
        self.clock.at(now + scaling.look_seconds, self._scale)

    # What happens to tasks

    def matched(self, task: Foreign, now: float) -> None:
        """An offer has got it, here or at a parent."""
        number = int.from_bytes(task.payload)
        self.gauge.task_matched(number, now)
        if number not in self._sync:
            known = self._places[task.partition].partition.own_tasks.tasks.get(task.sequence)
            self._sync[number] = known is not None and not (known.stored or known.writing)

    def begun(self, task: Foreign) -> None:
        number = int.from_bytes(task.payload)
        self.polls_with_task += 1
        self.executions[number] = self.executions.get(number, 0) + 1
        if self.executions[number] == 1:
            self._latency.append(self.clock.now - self.started_adding[number])

    def ended(self, owner: Place, task: Foreign, session: bytes) -> None:
        owner.finish(task, session, 0)
        self._undone.discard(int.from_bytes(task.payload))
        if not self._undone:
            self.clock.stop()

    # Judging

    def check_bound(self) -> None:
        bound, longest = self.settings.idle_bound_seconds, self.gauge.longest
        if self.settings.forwards and longest > bound:
            raise Violation(
                f"An offer waited for {longest * 1e3:.2f} ms while a task waited elsewhere (at "
                f"{self.gauge.longest_at:.4f} s); it may be {bound * 1e3:.2f} ms."
            )

    def _check_rest(self) -> None:
        wrong = []
        total = self.settings.tasks + self._backlog
        if len(self.executions) != total:
            wrong.append(f"{len(self.executions)} of {total} tasks were begun")
        again = sum(self.executions.values()) - len(self.executions)
        if again:
            wrong.append(f"{again} executions too many")
        if self.ends_too_late:
            wrong.append(f"{self.ends_too_late} ends came too late to count")
        if self.visits_lost:
            wrong.append(f"{self.visits_lost} forwarded tasks were never answered")
        for place in self._places:
            partition = place.partition
            left = {
                "open tasks": partition.own_tasks.open_tasks,
                "tasks in memory": len(partition.own_tasks.tasks),
                "leases": len(partition.own_tasks.leases),
                "ready": partition.backlog.ready,
                "free slots": partition.offers.slots,
                "offers away": partition.tree.offers_away,
                "tasks away": partition.tree.tasks_away,
                "in the store": partition.ledger.stored,
                "lost": partition.attempts.lost,
            }
            wrong += [
                f"partition {place.number}: {what}: {count}"
                for what, count in left.items()
                if count
            ]
        if wrong:
            raise Violation("At the end: " + "; ".join(wrong[:10]) + ".")

    def measures(self) -> MatchingMeasures:
        total = self.settings.tasks + self._backlog
        sync = sum(self._sync.values())
        return MatchingMeasures(
            latency=Latency.of(self._latency),
            acknowledged=Latency.of(self.acknowledged),
            span_seconds=self._span,
            tasks=total,
            polls_with_task=self.polls_with_task,
            polls_without=self.empty_polls,
            forwarded_polls=sum(place.partition.tree.passed_offers for place in self._places),
            forwarded_tasks=sum(place.partition.tree.passed_tasks for place in self._places),
            given_back=sum(place.given_back for place in self._places),
            written=sum(place.written for place in self._places),
            commits=sum(writer.commits for writer in self._writers),
            sync_matches=sync,
            async_matches=total - sync,
            executions=sum(self.executions.values()),
            refused_adds=self.refused_adds,
            idle_while_waiting_max=self.gauge.longest,
            idle_bound=self.settings.idle_bound_seconds,
            read_partitions=self._read_at_end,
            read_partitions_max=self._read_max,
            messages=self.network.messages,
            partitions=tuple(
                PartitionMeasures(
                    place.partition.intake.added.total,
                    place.polls,
                    place.partition.tree.passed_tasks,
                    place.partition.tree.passed_offers,
                    place.written,
                )
                for place in self._places
            ),
        )


def _key(partition: int) -> PartitionKey:
    return PartitionKey("study", "tasks", 1, partition)


def _rates(settings: MatchingModel) -> list[float]:
    """The arrival rate before each task."""
    rates: list[float] = []
    passed = 0.0
    for share, factor in settings.phases:
        passed += share
        until = round(passed * settings.tasks)
        rates += [settings.rate_per_second * factor] * (until - len(rates))
    return rates
