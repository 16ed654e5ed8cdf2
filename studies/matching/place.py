"""One partition and what drives it: the real machine, its effects as messages of virtual time.

This does what `maitred.node.partitions` does: all that happens at one moment is answered together,
effects are carried out in their order, questions to the parent are answered once, and an offer that
is recalled is answered too.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from maitred.matching import effects
from maitred.matching.offers import WaitingOffer
from maitred.matching.partition import Partition
from maitred.matching.records import Terms
from maitred.matching.task import READY, QueueTask
from maitred.matching.tree_forwarding import VISIT_SECONDS
from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.records import PartitionKey
    from maitred.routing.counts import PartitionCounts
    from studies.matching.model import Model
    from studies.matching.writer import Writer

ASK_SECONDS = 5.0
"""How much longer than the visit a child waits for the answer; as nodes have it."""

RETURNED = 2
"""How an attempt ended that never began; as the wire counts it."""

TERMS = Terms()

SIGNING_KEY = bytes(32)
"""Any: no worker of this model forges a proof."""


class Passed:
    """An offer that a child has passed on, as the parent knows it."""

    __slots__ = ("answered", "child", "offer", "waiting")

    def __init__(self, child: Place, offer: WaitingOffer) -> None:
        self.child = child
        self.offer = offer
        self.answered = False
        self.waiting: WaitingOffer | None = None


class Visit:
    """A task that a child has passed on."""

    __slots__ = ("answered", "arrived", "child", "recalled", "task")

    def __init__(self, child: Place, task: QueueTask) -> None:
        self.child = child
        self.task = task
        self.arrived: QueueTask | None = None
        """As the parent has it."""
        self.recalled = False
        self.answered = False


class Place:
    """A partition at its host."""

    def __init__(
        self, model: Model, key: PartitionKey, writer: Writer, counts: PartitionCounts
    ) -> None:
        self.model = model
        self.number = key.partition
        self.writer = writer
        self.written = 0
        self.polls = 0
        self.given_back = 0
        self._clock = model.clock
        acquired = model.contents.own(key)
        self.partition = Partition(
            key,
            acquired._replace(clean=True),
            counts,
            model.settings.queue,
            random=model.random,
            now=model.clock.now,
            wall=0.0,
            signing_key=SIGNING_KEY,
            forwards=model.settings.forwards,
        )
        self._touched = False
        self._timer_at = inf
        self._asked: dict[WaitingOffer, Passed] = {}
        self._visits: dict[QueueTask, Visit] = {}
        self._carry_out: dict[type[effects.Effect], Callable[[Any], None]] = {
            effects.Give: self._give,
            effects.NothingFor: self._nothing_for,
            effects.Settle: self._settle,
            effects.PassOffer: self._pass_offer,
            effects.RecallOffer: self._recall_offer,
            effects.PassTask: self._pass_task,
            effects.RecallTask: self._recall_task,
            effects.VisitorTaken: self._visitor_taken,
            effects.VisitorUnwanted: self._visitor_unwanted,
            effects.GiveBack: self._give_back,
            effects.Read: self._read,
            effects.ReadLater: self._read_later,
        }

    # Turns

    def touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._clock.soon(self._drive)

    def _drive(self) -> None:
        self._touched = False
        partition = self.partition
        now = self._clock.now
        partition.matcher.flush(now)
        at = partition.look(now)
        partition.matcher.flush(now)
        carry_out = self._carry_out
        while partition.effects:
            for effect in partition.take_effects():
                carry_out[type(effect)](effect)
        self.writer.look_at(self)
        if at != self._timer_at:
            self._timer_at = at
            if at < inf:
                self._clock.at(at, self._rings, at)

    def _rings(self, at: float) -> None:
        if at == self._timer_at:
            self._timer_at = inf
            self.touch()

    def _send(self, target: Place | object, arrive: Callable[..., None], *what: object) -> None:
        self.model.network.send(self, target, arrive, *what)

    @property
    def _parent(self) -> Place:
        return self.model.place(self.partition.parent or 0)

    # What arrives from clients

    def add(self, payload: bytes, version: int, token: Callable[..., None]) -> None:
        partition = self.partition
        if not partition.writable:
            token(self, -1, self._newer(-1))
            return

        def settle(problem: Exception | None) -> None:
            if problem is not None:
                raise problem
            token(self, first, self._newer(version))

        number = int.from_bytes(payload)
        self.model.gauge.task_waits(number, self._clock.now)
        first = partition.intake.add(
            [payload], token=settle, now=self._clock.now, priority=2, terms=TERMS
        )
        self.touch()

    def offer(self, token: Any, session: bytes, version: int) -> None:  # noqa: ANN401
        now = self._clock.now
        self.polls += 1
        offer = WaitingOffer((token, version), session, "w", 1, now)
        self.model.gauge.offer_opens(offer, now)
        self.partition.matcher.offer(offer, now + self.partition.settings.offer_seconds, now)
        self.touch()

    def finish(self, task: effects.Foreign, session: bytes, how: int) -> None:
        ticket, unknown, refused = self.partition.attempts.finish(
            [(task.sequence, task.attempt, how, b"", task.proof)],
            _nobody,
            self._clock.now,
            session,
        )
        if refused:
            raise Violation(f"Task {task.sequence} was refused to the worker that had it.")
        if unknown:
            self.model.ends_too_late += 1
        self.partition.tickets.release(ticket)
        self.touch()

    def learn(self, counts: PartitionCounts | None) -> None:
        if counts is not None and counts.version > self.partition.counts.version:
            self.partition.set_counts(counts, self._clock.now)
            self.touch()

    def _newer(self, version: int) -> PartitionCounts | None:
        counts = self.partition.counts
        return counts if counts.version > version else None

    # Effects

    def _give(self, effect: effects.Give) -> None:
        number = self.number
        found = [
            effects.Foreign(
                number,
                task.sequence,
                task.attempt + 1,
                task.proof,
                0.0,
                task.payload,
                self._clock.now,
            )
            for task in effect.tasks
        ]
        self._offered(effect.offer, found + effect.foreign)

    def _nothing_for(self, effect: effects.NothingFor) -> None:
        self._offered(effect.offer, [])

    def _offered(self, offer: WaitingOffer, found: list[effects.Foreign]) -> None:
        token, version = offer.token
        now = self._clock.now
        for task in found:
            self.model.matched(task, now)
        if isinstance(token, Passed):
            if not token.answered:
                token.answered = True
                child = token.child
                self._send(child, child.offer_answered, token, found, self._newer(version))
            return
        self.model.gauge.offer_ends(offer, now)
        partition = self.partition
        hint = (max(0, partition.waiting), partition.intake.added.per_second(now))
        self._send(token.process, token.answered, found, hint, self._newer(version))

    def _settle(self, effect: effects.Settle) -> None:
        effect.ticket.token(effect.ticket.problem)

    def _pass_offer(self, effect: effects.PassOffer) -> None:
        passed = Passed(self, effect.offer)
        self._asked[effect.offer] = passed
        self._send(self._parent, self._parent.offer_passed, passed, self.partition.counts.version)

    def offer_passed(self, passed: Passed, version: int) -> None:
        now = self._clock.now
        offer = passed.offer
        passed.waiting = WaitingOffer(
            (passed, version), offer.session, offer.worker, offer.slots, now, offer.hops + 1
        )
        self.partition.matcher.offer(
            passed.waiting, now + self.partition.settings.offer_seconds, now
        )
        self.touch()

    def _recall_offer(self, effect: effects.RecallOffer) -> None:
        passed = self._asked.get(effect.offer)
        if passed is not None:
            self._send(self._parent, self._parent.offer_recalled, passed)

    def offer_recalled(self, passed: Passed) -> None:
        if passed.answered or passed.waiting is None:
            return
        passed.answered = True
        self.partition.matcher.withdraw(passed.waiting, self._clock.now)
        self._send(passed.child, passed.child.offer_answered, passed, [], None)
        self.touch()

    def offer_answered(
        self, passed: Passed, found: list[effects.Foreign], counts: PartitionCounts | None
    ) -> None:
        del self._asked[passed.offer]
        self.learn(counts)
        self.partition.tree.offer_answered(passed.offer, found, self._clock.now)
        self.touch()

    def _pass_task(self, effect: effects.PassTask) -> None:
        visit = self._visits[effect.task] = Visit(self, effect.task)
        self._send(self._parent, self._parent.task_visits, visit, self.partition.counts.version)
        self._clock.at(self._clock.now + VISIT_SECONDS + ASK_SECONDS, self._visit_too_long, visit)

    def _recall_task(self, effect: effects.RecallTask) -> None:
        visit = self._visits.get(effect.task)
        if visit is not None:
            self._send(self._parent, self._parent.task_recalled, visit)

    def task_recalled(self, visit: Visit) -> None:
        visit.recalled = True
        if visit.arrived is not None:
            self.partition.tree.visit_recalled(visit.arrived)
            self.touch()

    def task_visits(self, visit: Visit, version: int) -> None:
        now = self._clock.now
        child, task = visit.child, visit.task
        visitor = task.origin >= 0
        arrived = QueueTask(task.sequence, task.priority, TERMS, task.payload, task.ready, READY)
        arrived.ready = task.ready
        arrived.origin = task.origin if visitor else child.number
        arrived.attempt = task.attempt if visitor else task.attempt + 1
        arrived.visit = (visit, version)
        visit.arrived = arrived
        self.partition.tree.visit(arrived, now + VISIT_SECONDS, now)
        if visit.recalled:  # which overtook it on the way
            self.partition.tree.visit_recalled(arrived)
        self.touch()

    def _visitor_taken(self, effect: effects.VisitorTaken) -> None:
        self._visit_over(effect.task, effect.holder, effect.worker)

    def _visitor_unwanted(self, effect: effects.VisitorUnwanted) -> None:
        self._visit_over(effect.task, b"", "")

    def _visit_over(self, task: QueueTask, holder: bytes, worker: str) -> None:
        visit, version = task.visit
        visit.arrived = None  # or the cycle through the task would stay in memory: see `QueueTask`
        child = visit.child
        self._send(child, child.task_answered, visit, holder, worker, self._newer(version))

    def task_answered(
        self, visit: Visit, holder: bytes, worker: str, counts: PartitionCounts | None
    ) -> None:
        if visit.answered:
            return
        visit.answered = True
        self._visits.pop(visit.task, None)
        self.learn(counts)
        self.partition.tree.task_answered(visit.task, holder, worker, self._clock.now)
        self.touch()

    def _visit_too_long(self, visit: Visit) -> None:
        if not visit.answered:
            visit.answered = True
            self._visits.pop(visit.task, None)
            self.model.visits_lost += 1
            self.partition.tree.task_lost(visit.task, self._clock.now)
            self.touch()

    def _give_back(self, effect: effects.GiveBack) -> None:
        task = effect.task
        self.given_back += 1
        self.model.gauge.task_waits(int.from_bytes(task.payload), self._clock.now)
        owner = self.model.place(task.partition)
        self._send(owner, owner.finish, task, effect.session, RETURNED)

    # Reading

    def _read(self, effect: effects.Read) -> None:
        at = self._clock.now + self.model.settings.commit_seconds
        self._clock.at(at, self._was_read, effect)

    def _was_read(self, effect: effects.Read) -> None:
        reading = effect.reading
        found = self.model.contents.segments(
            self.partition.key, reading.priority, reading.after, reading.tasks, reading.most_bytes
        )
        self.partition.store_replies.segments_read(found, effect, self._clock.now)
        self.touch()

    def _read_later(self, effect: effects.ReadLater) -> None:
        at = self._clock.now + self.model.settings.commit_seconds
        self._clock.at(at, self._later_was_read, effect)

    def _later_was_read(self, effect: effects.ReadLater) -> None:
        found = self.model.contents.later(
            self.partition.key, effect.before, effect.most, effect.most_bytes
        )
        self.partition.store_replies.later_read(found, effect, self._clock.now)
        self.touch()


def _nobody(_problem: Exception | None) -> None:
    """Nobody waits for this answer."""
