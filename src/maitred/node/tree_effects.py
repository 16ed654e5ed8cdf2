"""The exchange between a partition and its parent: offers and tasks go up, answers come down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.errors import Cancelled, ConnectionLost, MaitredError
from maitred.matching import effects
from maitred.matching.tree_forwarding import VISIT_SECONDS
from maitred.node.peer_calls import ASK_SECONDS
from maitred.protocol.tasks import RETURNED, End, Finish, Forward, Forwarded, Offer, Offered

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.node.driver_shell import DriverShell
    from maitred.node.effect_driver import TreeDriver
    from maitred.node.owned import Owned
    from maitred.protocol.tasks import Reserved


class TreeEffects:
    """Carries out what partitions want of their parents and of their children."""

    def __init__(self, driver: TreeDriver, shell: DriverShell) -> None:
        self._driver = driver
        self._clock = shell.loop
        self._ask = shell.ask
        self.carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            effects.PassOffer: self._pass_offer,
            effects.RecallOffer: self._recall_offer,
            effects.PassTask: self._pass_task,
            effects.RecallTask: self._recall_task,
            effects.VisitorTaken: self._visitor_taken,
            effects.VisitorUnwanted: self._visitor_unwanted,
            effects.VisitorLost: self._visitor_lost,
            effects.GiveBack: self._give_back,
        }

    # To the parent

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
                self._driver.learn(owned, outcome.counts)
                found = [
                    effects.Foreign(
                        one.partition,
                        one.sequence,
                        one.attempt,
                        one.proof,
                        one.timeout,
                        one.payload,
                        one.waited,
                        one.trace,
                    )
                    for one in outcome.tasks
                ]
            partition.tree.offer_answered(offer, found, self._clock.time(), reserved)
            self._driver.touch(owned)

        owned.asked[offer] = self._ask(message, partition.settings.offer_seconds, done)

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
        now = self._clock.time()
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
            task.trace,
        )

        def done(outcome: Struct | MaitredError) -> None:
            owned.asked.pop(task, None)
            now = self._clock.time()
            if isinstance(outcome, Forwarded):
                self._driver.learn(owned, outcome.counts)
                partition.tree.task_answered(task, outcome.holder, outcome.worker, now)
            elif isinstance(outcome, Cancelled):  # called back before it was sent
                partition.tree.task_answered(task, b"", "", now)
            elif isinstance(outcome, MaitredError) and outcome.nothing_done:  # it was never asked
                partition.tree.parent_away(now)
                partition.tree.task_answered(task, b"", "", now)
            else:
                partition.tree.task_lost(task, now)
            self._driver.touch(owned)

        owned.asked[task] = self._ask(message, VISIT_SECONDS + ASK_SECONDS, done)

    def _recall_task(self, owned: Owned, effect: effects.RecallTask) -> None:
        asked = owned.asked.get(effect.task)
        if asked is not None:
            asked.recall()

    def _give_back(self, owned: Owned, effect: effects.GiveBack) -> None:
        key, task = owned.key, effect.task
        message = Finish(
            key.namespace,
            key.queue,
            key.queue_type,
            task.partition,
            0,
            effect.session,
            [End(task.sequence, task.attempt, task.proof, RETURNED)],
            effect.user,
        )
        # If this does not arrive, the task is given out again when its lease ends.
        self._ask(message, ASK_SECONDS, lambda _: None)

    # To the children

    def _visitor_taken(self, owned: Owned, effect: effects.VisitorTaken) -> None:
        held, version = effect.task.visit
        held.answer(Forwarded(effect.holder, effect.worker, self._driver.newer(owned, version)))

    def _visitor_unwanted(self, owned: Owned, effect: effects.VisitorUnwanted) -> None:
        held, version = effect.task.visit
        held.answer(Forwarded(b"", "", self._driver.newer(owned, version)))

    def _visitor_lost(self, _owned: Owned, effect: effects.VisitorLost) -> None:
        held, _ = effect.task.visit
        held.refuse(ConnectionLost("The task was lost sight of on its way up the tree."))
