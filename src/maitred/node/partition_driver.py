"""Partitions that are driven: the turns of the loop, and what they want done.

The partition decides (`maitred.matching`); here its effects are carried out. All that happens to a
partition in one turn of the loop is answered together at the end of the turn.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from maitred.errors import (
    Cancelled,
    ConnectionLost,
    InvalidProof,
    MaitredError,
    NotOwner,
    OutcomeUnknown,
)
from maitred.matching import effects
from maitred.matching.attempt_proofs import session_of, user_of
from maitred.matching.shared_supplies import SharedSupplies
from maitred.matching.tree_forwarding import VISIT_SECONDS
from maitred.node.occasional_warning import OccasionalWarning
from maitred.node.peer_calls import ASK_SECONDS, ask
from maitred.node.query_effects import QueryEffects
from maitred.protocol.frames import Opcode
from maitred.protocol.shared_offers import OfferedMany
from maitred.protocol.tasks import (
    RETURNED,
    Await,
    Counts,
    End,
    Finish,
    Forward,
    Forwarded,
    Given,
    Heard,
    Offer,
    Offered,
    Outcome,
    Reserved,
)
from maitred.routing.counts import PartitionCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.matching.offers import WaitingOffer
    from maitred.matching.partition import Partition
    from maitred.matching.records import PartitionKey
    from maitred.matching.shared_supplies import SharedOffer, SharedSupply
    from maitred.node.peer_calls import ShardQuestion
    from maitred.node.shard import Shard
    from maitred.node.writer import Writer
    from maitred.store.interface import Store
    from maitred.surroundings import Surroundings

READ_RETRY_SECONDS: Final = 0.5
"""Before what could not be read is read again."""

USUAL_COUNTS: Final = PartitionCounts()
"""What everybody takes for granted who has heard of no others."""

ANSWERS: Final = (
    effects.NothingFor,
    effects.Settle,
    effects.VisitorUnwanted,
    effects.GiveBack,
    effects.Tell,
    effects.RefuseToTell,
    effects.AskAgain,
    effects.Beat,
    effects.AllocateSlot,
    effects.RefuseSlotRequest,
    effects.AnswerAttend,
    effects.AnswerSubscribe,
    effects.RefuseSubscribe,
    effects.FindEnds,
)
"""What somebody waits for; these are still carried out for a partition that is let go."""


class Owned:
    """A partition, and what drives it."""

    __slots__ = (
        "asked",
        "key",
        "last_used",
        "lightly",
        "partition",
        "tend_at",
        "timer",
        "timer_at",
        "touched",
    )

    def __init__(self, partition: Partition, now: float) -> None:
        self.key = partition.key
        self.partition = partition
        self.touched = False
        self.lightly = False
        """Whether nothing happened to it in this turn but that slots were offered and reserved."""
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = inf
        self.last_used = now
        self.tend_at = now
        """When its caretaker looks at it next."""
        self.asked: dict[object, ShardQuestion] = {}
        """Questions to the parent, by the offer or task that they are about."""


class PartitionDriver:
    """What a shard does with the partitions that it has."""

    def __init__(
        self, shard: Shard, store: Store, writer: Writer, surroundings: Surroundings
    ) -> None:
        self.shard = shard
        self.store = store
        self.loop = shard.loop
        self.owned: dict[PartitionKey, Owned] = {}
        self._writer = writer
        self._surroundings = surroundings
        self.queries = QueryEffects(self, surroundings)
        self._touched: list[Owned] = []
        self.supplies = SharedSupplies()
        """Slots of workers that are on offer to many partitions of this shard."""
        self.supplies.forgotten = self._set_forgotten
        self._gave: dict[SharedOffer, bool] = {}
        """Shared offers to answer at the end of the turn, and whether their sets are known."""
        self._unproven_warning = OccasionalWarning(
            shard.log, "attempts refused: the caller was not given them"
        )
        self._not_kept_warning = OccasionalWarning(
            shard.log, "not kept: the store has no room within the quotas"
        )
        self._damaged_warning = OccasionalWarning(shard.log, "damaged rows set aside")
        self._unread_warning = OccasionalWarning(shard.log, "backlog not read")
        self._carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            effects.Give: self._give,
            effects.NothingFor: self._nothing_for,
            effects.NothingForShared: self._nothing_for_shared,
            effects.Settle: self._settle,
            effects.PassOffer: self._pass_offer,
            effects.RecallOffer: self._recall_offer,
            effects.PassTask: self._pass_task,
            effects.RecallTask: self._recall_task,
            effects.VisitorTaken: self._visitor_taken,
            effects.VisitorUnwanted: self._visitor_unwanted,
            effects.VisitorLost: self._visitor_lost,
            effects.GiveBack: self._give_back,
            effects.Tell: self._tell,
            effects.RefuseToTell: self._refuse_to_tell,
            effects.AskAgain: self._ask_again,
            effects.SetAside: self._set_aside,
            effects.Beat: self._beat,
            effects.Unproven: self._unproven,
            effects.NotKept: self._not_kept,
            effects.Read: self._read,
            effects.ReadLater: self._read_later,
            **self.queries.carry_out,
        }

    def on_effect(
        self, kind: type[effects.Effect], carry_out: Callable[[Owned, Any], None]
    ) -> None:
        """Have effects of this kind carried out by another part of the shard."""
        self._carry_out[kind] = carry_out

    # Turns

    def touch(self, owned: Owned) -> None:
        """Something happened to it: look at it at the end of the turn."""
        owned.lightly = False
        if not owned.touched:
            self._touch(owned)

    def touch_lightly(self, owned: Owned) -> None:
        """Slots were offered or reserved, and nothing else: answers at the end of the turn, and
        whatever it was to be looked at for before."""
        if not owned.touched:
            owned.lightly = True
            self._touch(owned)

    def _touch(self, owned: Owned) -> None:
        owned.touched = True
        if not self._touched:
            self.loop.call_soon(self._turn_ends)
        self._touched.append(owned)

    def _turn_ends(self) -> None:
        touched, self._touched = self._touched, []
        now = self.loop.time()
        for owned in touched:
            owned.touched = False
            if self.owned.get(owned.key) is owned:
                try:
                    self._drive(owned, now)
                except Exception as fault:  # noqa: BLE001 - the others have their turn
                    self.failed(owned, fault)
        if self._gave:
            self._answer_shared_offers(now)
        if self.supplies.returned:
            returned, self.supplies.returned = self.supplies.returned, {}
            for supply in returned:
                self.serve(supply, now)

    def serve(self, supply: SharedSupply, now: float) -> None:
        """Slots of this set are free: let the hungry partitions of it have them."""
        for key in self.supplies.serve(supply, now):
            owned = self.owned.get(key)
            if owned is not None:
                self.touch(owned)
            else:
                self.supplies.sated(key)  # it failed, and was not let go in order

    def _drive(self, owned: Owned, now: float) -> None:
        partition = owned.partition
        partition.matcher.flush(now)
        carry_out = self._carry_out
        if owned.lightly:
            owned.lightly = False
            for effect in partition.take_effects():
                carry_out[type(effect)](owned, effect)
            if not partition.effects and not partition.presence.news:
                if partition.offers.sets:
                    self.supplies.note(partition.matcher)
                return
        at = partition.look(now)
        partition.matcher.flush(now)
        while partition.effects:
            for effect in partition.take_effects():
                carry_out[type(effect)](owned, effect)
        if partition.offers.sets:
            self.supplies.note(partition.matcher)
        self._writer.look_at(owned, now)
        if at != owned.timer_at:
            self._set_timer(owned, at)

    def _set_timer(self, owned: Owned, at: float) -> None:
        if owned.timer is not None:
            owned.timer.cancel()
            owned.timer = None
        owned.timer_at = at
        if at < inf:
            owned.timer = self.loop.call_at(at, self._timer_rings, owned)

    def _timer_rings(self, owned: Owned) -> None:
        owned.timer = None
        owned.timer_at = inf
        self.touch(owned)

    # Effects

    def _give(self, owned: Owned, effect: effects.Give) -> None:
        now = self.loop.time()
        partition = owned.partition
        number = owned.key.partition
        holder = effect.offer.holder
        given = [
            Given(
                number,
                task.sequence,
                task.attempt + 1,
                task.proof,
                task.terms.timeout,
                task.payload,
                now - task.ready,
            )
            for task in effect.tasks
            if task.holder is holder  # else its lease ended before anybody heard of it
        ]
        given += [Given(*foreign) for foreign in effect.foreign]
        reserved = [*effect.reserved_above]
        reserved += [self.queries.reserved(owned, one) for one in effect.reserved]
        self._offered(owned, effect.offer, given, partition, now, reserved)

    def _nothing_for(self, owned: Owned, effect: effects.NothingFor) -> None:
        self._offered(owned, effect.offer, [], owned.partition, self.loop.time(), [])

    def _offered(
        self,
        owned: Owned,
        offer: WaitingOffer,
        given: list[Given],
        partition: Partition,
        now: float,
        reserved: list[Reserved],
    ) -> None:
        shared = offer.shared
        supply = shared.supply if shared is not None else None
        index = supply.members[owned.key] if supply is not None else 0
        version = supply.versions[index] if supply is not None else offer.token[1]
        offered = Offered(
            given,
            partition.settings.lease_seconds,
            partition.waiting,
            round(partition.intake.added.per_second(now), 3),
            self.newer(owned, version),
            reserved,
        )
        if shared is None or supply is None:
            offer.token[0].answer(offered)
            return
        if offered.counts is not None:
            supply.versions[index] = offered.counts.version
        shared.gifts.append((index, offered))
        self._gave.setdefault(shared, True)

    # Shared offers

    def _answer_shared_offers(self, now: float) -> None:
        """Answer those that got something in this turn, and those whose sets were forgotten."""
        gave, self._gave = self._gave, {}
        for offer, known in gave.items():
            for key in list(offer.parts):  # it drew after its turn had ended
                owned = self.owned.get(key)
                if owned is not None:
                    try:
                        self._drive(owned, now)
                    except Exception as fault:  # noqa: BLE001 - the others have their turn
                        self.failed(owned, fault)
                offer.parts.pop(key, None)
            self._gave.pop(offer, None)
            self.answer_shared(offer, known=known)

    def tell_shared(self, offer: SharedOffer) -> None:
        """Answer it at the end of the turn: it has news."""
        self._gave.setdefault(offer, True)
        self.loop.call_soon(self._turn_ends)

    def answer_shared(self, offer: SharedOffer, *, known: bool = True) -> None:
        """Answer it with what it got."""
        supply = offer.supply
        self.supplies.close(offer)
        urgency, hungry = self.supplies.waiting(supply)
        gifts = cast("list[tuple[int, Offered]]", offer.gifts)
        refused, supply.refused = supply.refused, []
        offer.token.answer(OfferedMany(gifts, known, urgency, hungry, refused))

    def _nothing_for_shared(self, _owned: Owned, effect: effects.NothingForShared) -> None:
        if effect.shared.is_open:
            self.answer_shared(effect.shared)

    def _set_forgotten(self, offer: SharedOffer) -> None:
        self._gave[offer] = False
        self.loop.call_soon(self._turn_ends)

    def newer(self, owned: Owned, version: int) -> Counts | None:
        """The counts, if the caller's are older."""
        counts = owned.partition.counts
        if counts.version <= version and version:
            return None
        if not version and counts == USUAL_COUNTS:
            return None
        return Counts(counts.read, counts.write, counts.version)

    def _settle(self, owned: Owned, effect: effects.Settle) -> None:
        ticket = effect.ticket
        ticket.token(owned, ticket.problem)

    def _pass_offer(self, owned: Owned, effect: effects.PassOffer) -> None:
        offer = effect.offer
        key, partition = owned.key, owned.partition
        if partition.parent is None:
            return
        message = Offer(
            key.namespace,
            key.queue,
            key.queue_type,
            partition.parent,
            0,
            partition.counts.version,
            offer.session,
            offer.worker,
            offer.slots,
            offer.hops + 1,
            offer.address,
            offer.user,
        )

        def done(outcome: Struct | MaitredError) -> None:
            owned.asked.pop(offer, None)
            found = []
            reserved: list[Reserved] = []
            if isinstance(outcome, Offered):
                reserved = outcome.reserved
                self.learn(owned, outcome.counts)
                found = [
                    effects.Foreign(
                        one.partition,
                        one.sequence,
                        one.attempt,
                        one.proof,
                        one.timeout,
                        one.payload,
                        one.waited,
                    )
                    for one in outcome.tasks
                ]
            partition.tree.offer_answered(offer, found, self.loop.time(), reserved)
            self.touch(owned)

        seconds = partition.settings.offer_seconds
        owned.asked[offer] = ask(self.shard, message, seconds, done)

    def _recall_offer(self, owned: Owned, effect: effects.RecallOffer) -> None:
        # The parent may have given something already: then its answer is on the way, and what it
        # gave is given back. So it is asked to hurry, and its answer is waited for.
        asked = owned.asked.get(effect.offer)
        if asked is not None:
            asked.recall()

    def _pass_task(self, owned: Owned, effect: effects.PassTask) -> None:
        task = effect.task
        key, partition = owned.key, owned.partition
        if partition.parent is None:
            return
        visitor = task.origin >= 0
        now = self.loop.time()
        message = Forward(
            key.namespace,
            key.queue,
            key.queue_type,
            partition.parent,
            0,
            partition.counts.version,
            task.origin if visitor else key.partition,
            task.sequence,
            task.attempt if visitor else task.attempt + 1,
            task.priority,
            task.terms.timeout,
            task.payload,
            now - task.ready,
            max(task.expires - now, 0.001) if task.expires else 0.0,
        )

        def done(outcome: Struct | MaitredError) -> None:
            owned.asked.pop(task, None)
            now = self.loop.time()
            if isinstance(outcome, Forwarded):
                self.learn(owned, outcome.counts)
                partition.tree.task_answered(task, outcome.holder, outcome.worker, now)
            elif isinstance(outcome, Cancelled):  # called back before it was sent
                partition.tree.task_answered(task, b"", "", now)
            elif isinstance(outcome, MaitredError) and outcome.nothing_done:  # it was never asked
                partition.tree.parent_away(now)
                partition.tree.task_answered(task, b"", "", now)
            else:
                partition.tree.task_lost(task, now)
            self.touch(owned)

        owned.asked[task] = ask(self.shard, message, VISIT_SECONDS + ASK_SECONDS, done)

    def _recall_task(self, owned: Owned, effect: effects.RecallTask) -> None:
        asked = owned.asked.get(effect.task)
        if asked is not None:
            asked.recall()

    def _visitor_taken(self, owned: Owned, effect: effects.VisitorTaken) -> None:
        held, version = effect.task.visit
        held.answer(Forwarded(effect.holder, effect.worker, self.newer(owned, version)))

    def _visitor_unwanted(self, owned: Owned, effect: effects.VisitorUnwanted) -> None:
        held, version = effect.task.visit
        held.answer(Forwarded(b"", "", self.newer(owned, version)))

    def _visitor_lost(self, _owned: Owned, effect: effects.VisitorLost) -> None:
        held, _ = effect.task.visit
        held.refuse(ConnectionLost("The task was lost sight of on its way up the tree."))

    def _give_back(self, owned: Owned, effect: effects.GiveBack) -> None:
        key, task = owned.key, effect.task
        end = End(task.sequence, task.attempt, task.proof, RETURNED)
        message = Finish(
            key.namespace,
            key.queue,
            key.queue_type,
            task.partition,
            0,
            effect.session,
            [end],
            effect.user,
        )
        # If this does not arrive, the task's lease ends, and that is that.
        ask(self.shard, message, ASK_SECONDS, lambda _: None)

    def learn(self, owned: Owned, counts: Counts | None) -> None:
        """Counts that another shard told."""
        if counts is not None and counts.version > owned.partition.counts.version:
            newer = PartitionCounts(counts.read, counts.write, counts.version)
            owned.partition.set_counts(newer, self.loop.time())

    def _tell(self, _owned: Owned, effect: effects.Tell) -> None:
        ended = effect.ended
        effect.token.answer(Outcome(ended.status, ended.attempts, ended.body))

    def _refuse_to_tell(self, _owned: Owned, effect: effects.RefuseToTell) -> None:
        effect.token.refuse(effect.problem)

    def _ask_again(self, owned: Owned, effect: effects.AskAgain) -> None:
        key = owned.key
        message = Await(*key[:3], key.partition, 0, effect.sequence)
        self.shard.holders[Opcode.AWAIT](message, effect.token)

    def _set_aside(self, owned: Owned, effect: effects.SetAside) -> None:
        row = effect.row
        self.shard.damaged["rows"] += 1
        self.shard.damaged["tasks"] += row.tasks
        self._damaged_warning.say(
            self.loop.time(),
            namespace=owned.key.namespace,
            queue=owned.key.queue,
            partition=owned.key.partition,
            kind=row.kind,
            first=row.first,
            tasks=row.tasks,
            reason=row.reason,
        )

    def _beat(self, _owned: Owned, effect: effects.Beat) -> None:
        effect.token.answer(Heard(effect.lost, effect.revoked))

    def _unproven(self, owned: Owned, effect: effects.Unproven) -> None:
        session, user = session_of(effect.holder), user_of(effect.holder)
        self.shard.errors[InvalidProof.code] += effect.attempts
        self._unproven_warning.say(
            self.loop.time(),
            message=effect.message,
            namespace=owned.key.namespace,
            queue=owned.key.queue,
            partition=owned.key.partition,
            attempts=effect.attempts,
            session=session.hex()[:8],
            user=user,
        )

    def _not_kept(self, owned: Owned, effect: effects.NotKept) -> None:
        self._not_kept_warning.say(
            self.loop.time(),
            namespace=owned.key.namespace,
            queue=owned.key.queue,
            partition=owned.key.partition,
            what=effect.what,
            task=effect.sequence,
            bytes=effect.size,
        )

    # Reading

    def _read(self, owned: Owned, effect: effects.Read) -> None:
        self.shard.spawn(self._do_read(owned, effect))

    async def _do_read(self, owned: Owned, effect: effects.Read) -> None:
        reading = effect.reading
        partition = owned.partition
        try:
            found = await self.store.segments(
                owned.key, reading.priority, reading.after, reading.tasks, reading.most_bytes
            )
        except Exception as problem:  # noqa: BLE001 - whatever it is, the line must go on
            await self._reading_failed(owned, effect, problem)
            return
        try:
            partition.store_replies.segments_read(found, effect, self.loop.time())
        except Exception as fault:  # noqa: BLE001 - a half of it may be in memory
            self.failed(owned, fault)
        self.touch(owned)

    def _read_later(self, owned: Owned, effect: effects.ReadLater) -> None:
        self.shard.spawn(self._do_read_later(owned, effect))

    async def _do_read_later(self, owned: Owned, effect: effects.ReadLater) -> None:
        partition = owned.partition
        wall = partition.ledger.wall
        try:
            found = await self.store.later(
                owned.key, effect.before + wall, effect.most, effect.most_bytes
            )
        except Exception as problem:  # noqa: BLE001 - likewise
            await self._reading_failed(owned, effect, problem)
            return
        try:
            partition.store_replies.later_read(found, effect, self.loop.time())
        except Exception as fault:  # noqa: BLE001 - likewise
            self.failed(owned, fault)
        self.touch(owned)

    async def _reading_failed(
        self, owned: Owned, effect: effects.Read | effects.ReadLater, problem: Exception
    ) -> None:
        self._unread_warning.say(self.loop.time(), queue=owned.key.queue, error=problem)
        await asyncio.sleep(READ_RETRY_SECONDS)
        owned.partition.store_replies.read_failed(effect)
        self.touch(owned)

    # The end of one

    def lost(self, key: PartitionKey, problem: MaitredError) -> None:
        """Somebody else owns it now, or nobody knows what was written: forget all about it."""
        owned = self.owned.pop(key, None)
        if owned is None:
            return
        self.shard.log.warning(
            "partition given up", queue=key.queue, partition=key.partition, error=problem
        )
        self._let_go(owned, problem)

    def drop(self, owned: Owned, problem: MaitredError) -> None:
        """Let go of it without writing anything: it was deleted."""
        if self.owned.get(owned.key) is owned:
            del self.owned[owned.key]
            self._let_go(owned, problem)

    def failed(self, owned: Owned, fault: Exception) -> None:
        """A fault of ours. What it is like inside nobody knows, so the store is asked again."""
        self.shard.log.error(
            "partition failed",
            queue=owned.key.queue,
            partition=owned.key.partition,
            exc_info=fault,
        )
        if self.owned.get(owned.key) is not owned:
            return
        try:
            self.lost(owned.key, OutcomeUnknown("The node failed; its log says more."))
        except Exception:
            self.shard.log.exception("partition not left in order", queue=owned.key.queue)

    def check(self, owned: Owned) -> None:
        """Raise `NotOwner` if it was let go while somebody waited for something else."""
        if self.owned.get(owned.key) is not owned:
            raise NotOwner("The partition was let go.")

    def _let_go(self, owned: Owned, problem: MaitredError) -> None:
        if owned.timer is not None:
            owned.timer.cancel()
        for asked in owned.asked.values():
            asked.give_up()
        owned.asked = {}
        for effect in owned.partition.effects:
            if isinstance(effect, ANSWERS):
                self._carry_out[type(effect)](owned, effect)
        self.supplies.forget_at(owned.key)
        tokens, tickets = owned.partition.leave()
        for held in tokens:
            held.refuse(problem)
        for ticket in tickets:
            ticket.token(owned, ticket.last_word(problem))
