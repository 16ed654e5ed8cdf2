"""One run: a queue of real partitions on hosts, its producers and its workers, in virtual time.

In every run each task is done once, and (unless something was late) given out once; no offer waits
at an empty partition longer than the bound while a task waits elsewhere; and at the end nothing is
left, in memory or in the store. A run in which that does not hold raises `Violation`.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from maitred.matching.records import (
    Changes,
    Record,
    Segment,
    Terms,
    encode_records,
)
from maitred.matching.scaler import Scaler
from maitred.matching.task import Ticket
from maitred.protocol.tasks import DONE, Add, Counts, Finish, Finished, Offer, Offered
from maitred.routing.counts import PartitionCounts
from maitred.simulation.disk import Contents
from maitred.simulation.errors import Violation
from studies.matching.clients import Poller, Process, Producer
from studies.matching.clock import Clock, Network
from studies.matching.host import Host, model_key
from studies.matching.measures import (
    Gauge,
    Latency,
    MatchingMeasures,
    PartitionMeasures,
)

if TYPE_CHECKING:
    from maitred.node.owned import Owned
    from maitred.protocol.tasks import Given
    from studies.matching.host import Call
    from studies.matching.settings import MatchingModel

SEGMENT_TASKS = 100
"""Tasks in each segment of a backlog that is in the store from the start."""

REST_SECONDS = 2.0
"""Time after the last task in which everything has come to rest."""


def run_matching(settings: MatchingModel, seed: int, *, check: bool = True) -> MatchingMeasures:
    """Run the model once; with `check` raise `Violation` if the bound does not hold."""
    model = Model(settings, seed)
    try:
        model.run()
        if check:
            model.check_bound()
        return model.measures()
    finally:
        model.close()


class Model:
    """The hosts, producers and workers of one run."""

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
        self.ends_too_late = self.given_back = 0
        self.polls: Counter[int] = Counter()
        """Offers of workers, by partition."""
        self.executions: dict[int, int] = {}
        self._latency: list[float] = []
        self._numbers: dict[tuple[int, int], int] = {}
        """Numbers of the tasks that were given out, by partition and sequence number."""
        self._sync: dict[int, bool] = {}
        self._undone: set[int] = set()
        self._arrivals = Random(f"arrivals {seed}")
        self._work = Random(f"work {seed}")
        self._backlog = sum(settings.backlog)
        self._fill()
        self.counts = PartitionCounts(settings.read, settings.write, 1)
        self._hosts = [Host(self) for _ in range(settings.hosts)]
        self._partitions: list[Owned] = []
        self.host(settings.read - 1)
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

    def host(self, number: int) -> Host:
        """Return the host of a partition, which is created when it is first named."""
        while len(self._partitions) <= number:
            new = len(self._partitions)
            self._partitions.append(self._host_of(new).load(new))
        return self._host_of(number)

    def _host_of(self, number: int) -> Host:
        return self._hosts[number % len(self._hosts)]

    def _fill(self) -> None:
        """Put tasks into the store; they are numbered after those that will come."""
        number = self.settings.tasks
        for partition, tasks in enumerate(self.settings.backlog):
            key = model_key(partition)
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
            # Not all at once: a hundred workers do not start in one instant.
            self.clock.call_at(0.01 * self.random.random(), poller.offer)
        self._undone.update(range(settings.tasks))
        at = 0.01
        for number, rate in enumerate(_rates(settings)):
            at += self._arrivals.expovariate(rate)
            producer = self._producers[self._arrivals.randrange(len(self._producers))]
            self.clock.call_at(at, producer.add, number)
        self.clock.call_at(at, self._arrivals_end)
        if settings.scaling.adaptive:
            self.clock.call_at(settings.scaling.look_seconds, self._scale)
        if not self.clock.run(settings.run_seconds_max):
            raise Violation(f"After {self.clock.now:,.0f} s {len(self._undone)} tasks wait still.")
        self._span = self.clock.now
        self.closing = True
        self.clock.run(self._span + REST_SECONDS)
        for owned in self._partitions:
            for offer in list(owned.partition.offers.waiting()):
                if not offer.hops:
                    owned.partition.matcher.withdraw(offer, self.clock.now)
            self._host_of(owned.key.partition).touch(owned)
        self.clock.run(self._span + 2 * REST_SECONDS)
        self._check_rest()

    def close(self) -> None:
        """Break the reference cycles through tasks, so that the model can be freed from memory."""
        for owned in self._partitions:
            owned.partition.leave()

    def _arrivals_end(self) -> None:
        self._read_at_end = self.counts.read

    def work_seconds(self) -> float:
        mean = self.settings.work_seconds
        return mean if self.settings.work == "constant" else self._work.expovariate(1 / mean)

    def _scale(self) -> None:
        """Change the counts as the caretaker of the root does, with the real scaler."""
        if self.closing:
            return
        now = self.clock.now
        read_from = [owned.partition for owned in self._partitions[: self.counts.read]]
        rate = sum(partition.intake.added.per_second(now) for partition in read_from)
        drained = {
            partition.key.partition: partition.counts.version
            for partition in read_from
            if partition.drained
        }
        scaling = self.settings.scaling
        wanted = self._scaler.wanted(self.counts, rate, drained, scaling, now)
        if wanted is not None:
            read, write = wanted
            counts = self.counts.changed(read=read, write=write, drained=drained)
            root, host = self._partitions[0], self._host_of(0)

            def written(*_: object) -> None:
                self.counts = counts
                self._read_max = max(self._read_max, counts.read)
                told = Counts(counts.read, counts.write, counts.version)
                for owned in self._partitions:
                    target = self._host_of(owned.key.partition)
                    self.network.send(host, target, self._learn, target, owned, told)

            ticket = Ticket(written, 1)
            root.partition.ledger.set_counts(counts, ticket, now)
            root.partition.tickets.release(ticket)
            host.touch(root)
        self.clock.call_at(now + scaling.look_seconds, self._scale)

    def _learn(self, host: Host, owned: Owned, counts: Counts) -> None:
        host.learn(owned, counts)
        host.touch(owned)

    # What happens to tasks

    def arrives(self, call: Call) -> None:
        """Note a request that is about to be served."""
        message, now = call.message, self.clock.now
        partition = self._partitions[message.partition].partition
        if isinstance(message, Add):
            if partition.writable:
                self.gauge.task_waits(int.from_bytes(message.payloads[0]), now)
        elif isinstance(message, Offer):
            if not message.hops:
                self.polls[message.partition] += 1
                self.gauge.offer_opens(call, now)
        elif isinstance(message, Finish):
            self._ends(message)

    def _ends(self, message: Finish) -> None:
        number = self._numbers[message.partition, message.ends[0].sequence]
        if message.ends[0].how == DONE:
            self._undone.discard(number)
            if not self._undone:
                self.clock.stop()

    def returned(self, message: Finish) -> None:
        """Note a task that a partition gives back, because it arrived too late for its offer."""
        self.given_back += 1
        number = self._numbers[message.partition, message.ends[0].sequence]
        self.gauge.task_waits(number, self.clock.now)

    def answered(self, call: Call, outcome: object) -> None:
        """Note the answer of a partition to a request."""
        message, now = call.message, self.clock.now
        if isinstance(outcome, Offered):
            for task in outcome.tasks:
                self._matched(task, now)
        if isinstance(message, Offer) and not message.hops:
            self.gauge.offer_ends(call, now)
        if isinstance(outcome, Finished):
            if outcome.refused:
                raise Violation(f"{outcome.refused} were refused to the worker that had them.")
            self.ends_too_late += len(outcome.late)

    def _matched(self, task: Given, now: float) -> None:
        """Note that an offer has got the task, here or at a parent."""
        number = int.from_bytes(task.payload)
        self._numbers[task.partition, task.sequence] = number
        self.gauge.task_matched(number, now)
        if number not in self._sync:
            owner = self._partitions[task.partition].partition
            known = owner.own_tasks.tasks.get(task.sequence)
            self._sync[number] = known is not None and not (known.stored or known.writing)

    def begun(self, task: Given) -> None:
        number = int.from_bytes(task.payload)
        self.polls_with_task += 1
        self.executions[number] = self.executions.get(number, 0) + 1
        if self.executions[number] == 1:
            self._latency.append(self.clock.now - self.started_adding[number])

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
        for owned in self._partitions:
            partition = owned.partition
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
                f"partition {owned.key.partition}: {what}: {count}"
                for what, count in left.items()
                if count
            ]
        if wrong:
            raise Violation("At the end: " + "; ".join(wrong[:10]) + ".")

    def measures(self) -> MatchingMeasures:
        total = self.settings.tasks + self._backlog
        sync = sum(self._sync.values())
        partitions = [owned.partition for owned in self._partitions]
        written = [self._host_of(one).writer.written[one] for one in range(len(partitions))]
        return MatchingMeasures(
            latency=Latency.of(self._latency),
            acknowledged=Latency.of(self.acknowledged),
            span_seconds=self._span,
            tasks=total,
            polls_with_task=self.polls_with_task,
            polls_without=self.empty_polls,
            forwarded_polls=sum(partition.tree.passed_offers for partition in partitions),
            forwarded_tasks=sum(partition.tree.passed_tasks for partition in partitions),
            given_back=self.given_back,
            written=sum(written),
            commits=sum(host.writer.commits for host in self._hosts),
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
                    partition.intake.added.total,
                    self.polls[number],
                    partition.tree.passed_tasks,
                    partition.tree.passed_offers,
                    written[number],
                )
                for number, partition in enumerate(partitions)
            ),
        )


def _rates(settings: MatchingModel) -> list[float]:
    """Return the arrival rate before each task."""
    rates: list[float] = []
    passed = 0.0
    for share, factor in settings.phases:
        passed += share
        until = round(passed * settings.tasks)
        rates += [settings.rate_per_second * factor] * (until - len(rates))
    return rates
