"""Drives partitions: looks at each one that something happened to, and carries out its effects.

A partition (`maitred.matching`) decides; it says what it wants done by effects, and the driver does
it. Everything that happens to a partition in one turn of the loop is answered together at the end
of the turn. A node, the matching study and the tests of `maitred.matching` run this same driver,
each with a shell of its own (`driver_shell.py`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from maitred.errors import NotOwner, OutcomeUnknown
from maitred.matching import effects
from maitred.matching.controls import NO_CONTROLS
from maitred.matching.shared_supplies import SharedSupplies
from maitred.matching.slots import WaitingOffer
from maitred.node.partition_log import PartitionLog
from maitred.node.query_effects import QueryEffects
from maitred.node.task_effects import TaskEffects
from maitred.node.tree_effects import TreeEffects
from maitred.protocol.shared_offers import OfferedMany
from maitred.protocol.tasks import Counts
from maitred.routing.counts import PartitionCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.errors import MaitredError
    from maitred.matching.controls import QueueControls
    from maitred.matching.records import PartitionKey
    from maitred.matching.slots import SharedOffer, SharedSupply
    from maitred.node.driver_shell import BacklogStore, CommitWriter, DriverShell
    from maitred.node.owned import Owned
    from maitred.node.shard_permits import ShardPermits
    from maitred.protocol.tasks import Offered

USUAL_COUNTS: Final = PartitionCounts()
"""The counts that callers assume until they are told others."""

ANSWERS: Final = (
    effects.NothingFor,
    effects.Settle,
    effects.VisitorTaken,
    effects.VisitorUnwanted,
    effects.VisitorLost,
    effects.GiveBack,
    effects.Tell,
    effects.RefuseToTell,
    effects.TellRevoked,
    effects.Beat,
    effects.AllocateSlot,
    effects.RefuseSlotRequest,
    effects.AnswerAttend,
    effects.AnswerSubscribe,
    effects.RefuseSubscribe,
)
"""Effects that answer a caller. They are carried out even for a partition that is let go."""


class PartitionDriver:
    """Drives the partitions of one shard."""

    def __init__(
        self,
        shell: DriverShell,
        *,
        store: BacklogStore,
        writer: CommitWriter,
        permits: ShardPermits | None = None,
    ) -> None:
        """`permits` count the queries under way of users and queues that have a limit; None: no
        user and no queue has one."""
        self.owned: dict[PartitionKey, Owned] = {}
        self.supplies = SharedSupplies(self._set_forgotten)
        """Slots of workers that are on offer to many partitions of this shard."""
        self.gave: dict[SharedOffer, bool] = {}
        """Shared offers to answer at the end of the turn, and whether their sets are known."""
        self._shell = shell
        self._clock = shell.loop
        self._look_at = writer.look_at
        self._touched: list[Owned] = []
        self.queries = QueryEffects(self, shell, permits)
        self._carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            **TaskEffects(self, shell, store, self.queries.reserved).carry_out,
            **TreeEffects(self, shell).carry_out,
            **self.queries.carry_out,
            **PartitionLog(shell).carry_out,
            effects.NothingForShared: self._nothing_for_shared,
        }

    def on_effect(
        self, kind: type[effects.Effect], carry_out: Callable[[Owned, Any], None]
    ) -> None:
        """Have effects of this kind carried out by `carry_out`."""
        self._carry_out[kind] = carry_out

    # Turns

    def touch(self, owned: Owned) -> None:
        """Drive the partition at the end of the turn: something happened to it."""
        owned.lightly = False
        if not owned.touched:
            self._touch(owned)

    def touch_lightly(self, owned: Owned) -> None:
        """Answer what the partition has to answer at the end of the turn: slots were offered or
        reserved, and nothing else happened. Unless the turn brings more, its timer stays as it is.
        """
        if not owned.touched:
            owned.lightly = True
            self._touch(owned)

    def _touch(self, owned: Owned) -> None:
        owned.touched = True
        if not self._touched:
            self._clock.call_soon(self._turn_ends)
        self._touched.append(owned)

    def _turn_ends(self) -> None:
        touched, self._touched = self._touched, []
        now = self._clock.time()
        for owned in touched:
            owned.touched = False
            if self.owned.get(owned.key) is owned:
                try:
                    self._drive(owned, now)
                except Exception as fault:  # noqa: BLE001 - the others have their turn
                    self.failed(owned, fault)
            elif owned.partition.effects:
                self._return_tasks(owned)
        if self.gave:
            self._answer_shared_offers(now)
        if self.supplies.returned:
            returned, self.supplies.returned = self.supplies.returned, {}
            for supply in returned:
                self.serve(supply, now)

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
        self._look_at(owned, now)
        if at != owned.timer_at:
            self._set_timer(owned, at)

    def _set_timer(self, owned: Owned, at: float) -> None:
        if owned.timer is not None:
            owned.timer.cancel()
            owned.timer = None
        owned.timer_at = at
        if at < inf:
            owned.timer = self._clock.call_at(at, self._timer_rings, owned)

    def _timer_rings(self, owned: Owned) -> None:
        owned.timer = None
        owned.timer_at = inf
        self.touch(owned)

    # Shared offers

    def serve(self, supply: SharedSupply, now: float) -> None:
        """Let the hungry partitions of the set draw its free slots."""
        for key in self.supplies.serve(supply, now):
            owned = self.owned.get(key)
            if owned is not None:
                self.touch(owned)
            else:
                self.supplies.sated(key)  # it failed, and was not let go in order

    def _answer_shared_offers(self, now: float) -> None:
        """Answer the offers that got something in this turn, and those of forgotten sets."""
        gave, self.gave = self.gave, {}
        for offer, known in gave.items():
            for key in list(offer.parts):  # it drew after its turn had ended
                owned = self.owned.get(key)
                if owned is not None:
                    try:
                        self._drive(owned, now)
                    except Exception as fault:  # noqa: BLE001 - the others have their turn
                        self.failed(owned, fault)
                offer.parts.pop(key, None)
            self.gave.pop(offer, None)
            self.answer_shared(offer, known=known)

    def tell_shared(self, offer: SharedOffer) -> None:
        """Answer the offer at the end of the turn: there is news for its worker."""
        self.gave.setdefault(offer, True)
        self._clock.call_soon(self._turn_ends)

    def answer_shared(self, offer: SharedOffer, *, known: bool = True) -> None:
        """Answer the offer with what partitions have given to it."""
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
        self.gave[offer] = False
        self._clock.call_soon(self._turn_ends)

    # Partition counts

    def newer(self, owned: Owned, version: int) -> Counts | None:
        """Return the counts if the caller knows an older version, or only the usual ones (0)."""
        counts = owned.partition.counts
        if counts.version <= version and version:
            return None
        if not version and counts == USUAL_COUNTS:
            return None
        return Counts(counts.read, counts.write, counts.version)

    def learn(self, owned: Owned, counts: Counts | None) -> None:
        """Take over counts that another partition told, if they are newer."""
        if counts is not None and counts.version > owned.partition.counts.version:
            newer = PartitionCounts(counts.read, counts.write, counts.version)
            owned.partition.set_counts(newer, self._clock.time())

    # Controls

    def newer_controls(self, owned: Owned, known: QueueControls | None) -> QueueControls | None:
        """Return the controls of the queue if the caller knows none, or older ones."""
        controls = owned.partition.controls
        return controls if controls.version > (known or NO_CONTROLS).version else None

    def learn_controls(self, owned: Owned, controls: QueueControls | None) -> None:
        """Take over controls that the root told, if they are newer."""
        if controls is not None and controls.version > owned.partition.controls.version:
            owned.partition.set_controls(controls, self._clock.time())
            self.touch(owned)

    # Letting go

    def lost(self, key: PartitionKey, problem: MaitredError) -> None:
        """Forget the partition: another shard owns it, or what the store has of it is unknown."""
        self._give_up(key, problem)

    def _give_up(self, key: PartitionKey, problem: MaitredError) -> None:
        owned = self.owned.pop(key, None)
        if owned is None:
            return
        self._shell.log.warning(
            "partition given up", queue=key.queue, partition=key.partition, error=problem
        )
        self._let_go(owned, problem)

    def drop(self, owned: Owned, problem: MaitredError) -> None:
        """Let go of a partition that was deleted, without writing anything."""
        if self.owned.get(owned.key) is owned:
            del self.owned[owned.key]
            self._let_go(owned, problem)

    def failed(self, owned: Owned, fault: Exception) -> None:
        """Log a defect of the code, and forget the partition: its state in memory may be wrong, so
        it is loaded from the store again."""
        self._shell.log.error(
            "partition failed",
            queue=owned.key.queue,
            partition=owned.key.partition,
            exc_info=fault,
        )
        if self.owned.get(owned.key) is not owned:
            return
        try:
            self._give_up(owned.key, OutcomeUnknown("The node failed; its log says more."))
        except Exception:
            self._shell.log.exception("partition not left in order", queue=owned.key.queue)

    def check(self, owned: Owned) -> None:
        """Raise `NotOwner` if the partition was let go while a request waited for the store."""
        if self.owned.get(owned.key) is not owned:
            raise NotOwner("The partition was let go.")

    def _let_go(self, owned: Owned, problem: MaitredError) -> None:
        if owned.timer is not None:
            owned.timer.cancel()
        questions, owned.asked = owned.asked, {}
        for about, asked in questions.items():
            if isinstance(about, WaitingOffer):
                # The parent may have given the offer a task: the answer is on the way, and must
                # not be dropped. `_return_tasks` sends the task back.
                asked.recall()
            else:
                asked.give_up()
        for effect in owned.partition.take_effects():
            if isinstance(effect, ANSWERS):
                self._carry_out[type(effect)](owned, effect)
            elif isinstance(effect, effects.Give) and (effect.foreign or effect.reserved_above):
                # Other partitions gave these tasks and slots, and their owners have leased them.
                above = effect._replace(tasks=[], reserved=())
                self._carry_out[effects.Give](owned, above)
        self.supplies.forget_at(owned.key)
        tokens, tickets = owned.partition.leave()
        for held in tokens:
            held.refuse(problem)
        for ticket in tickets:
            ticket.token(owned, ticket.last_word(problem))

    def _return_tasks(self, owned: Owned) -> None:
        """Return the tasks that the parent had given to an offer of a partition that was let go
        meanwhile. Everything else that such a partition wants is for its next owner to do."""
        for effect in owned.partition.take_effects():
            if isinstance(effect, effects.GiveBack):
                self._carry_out[effects.GiveBack](owned, effect)
