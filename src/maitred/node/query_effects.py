"""Effects of queries: slots for gateways, requests for slots to the parent, news of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.errors import MaitredError
from maitred.matching import effects
from maitred.node.query_limits import UserQueryLimits
from maitred.protocol.queries import (
    Allocate,
    Allocated,
    Allocation,
    Attended,
    Member,
    Pass,
    Roster,
    SheddingTerms,
)
from maitred.protocol.tasks import Reserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.matching.slots import AllocatedSlot
    from maitred.node.driver_shell import DriverShell
    from maitred.node.effect_driver import TreeDriver
    from maitred.node.owned import Owned
    from maitred.node.shard_permits import ShardPermits
    from maitred.settings import QuerySettings


class QueryEffects:
    """Carries out what partitions want done about queries."""

    def __init__(
        self, driver: TreeDriver, shell: DriverShell, permits: ShardPermits | None
    ) -> None:
        self._driver = driver
        self._clock = shell.loop
        self._ask = shell.ask
        self._permits = permits
        self.limits = UserQueryLimits(shell.users)
        self.carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            effects.AllocateSlot: self._allocate,
            effects.RefuseSlotRequest: self._refuse_slot_request,
            effects.PassSlotRequest: self._pass_slot_request,
            effects.RecallSlotRequest: self._recall_slot_request,
            effects.AnswerAttend: self._answer_attend,
            effects.AnswerSubscribe: self._answer_subscribe,
            effects.RefuseSubscribe: self._refuse_subscribe,
        }

    def reserved(self, owned: Owned, one: AllocatedSlot) -> Reserved:
        """Return the reservation as its worker is told of it, with the limits of its user."""
        user = one.request.user
        queries = owned.partition.settings.queries
        limits = self.limits.of(queries, user)
        again = self.limits.again_seconds(queries, user)
        number = owned.key.partition
        return Reserved(
            number,
            one.token,
            user,
            *limits,
            again,
            queries.tracebacks,
            one.proof,
            owned.partition.ledger.range_id,
        )

    def _allocate(self, owned: Owned, effect: effects.AllocateSlot) -> None:
        number = owned.key.partition
        request = effect.request
        if request.slots and not request.hops:
            if request.user:
                self.limits.give_back(request.user, request.slots)
            if owned.partition.settings.queries.rate_per_second is not None:
                name = f"{owned.key.namespace}/{owned.key.queue}"
                self.limits.give_back_to_queue(name, request.slots)
        if request.permits and self._permits is not None:
            self._hold_permits(self._permits, owned, effect)
        held, version = request.token
        allocations: list[Allocation] = [*effect.above]
        for one in effect.reserved:
            offer = one.offer
            allocations.append(
                Allocation(number, one.token, offer.session, offer.worker, offer.address)
            )
        policy = self.policy_for(owned, request.user)
        told = "" if policy == "idle" else policy
        held.answer(Allocated(allocations, self._driver.newer(owned, version), told))

    def _hold_permits(
        self, permits: ShardPermits, owned: Owned, effect: effects.AllocateSlot
    ) -> None:
        """Bind one permit to each slot that was reserved here, and free the others: each of their
        queries has a slot above, and its permit there, or none, and will ask for one again."""
        key, queries = owned.key, owned.partition.settings.queries
        name = f"{key.namespace}/{key.queue}"
        limits = self.limits.under_way(queries, name, effect.request.user)
        names = tuple(limit.name for limit in limits)
        taken = effect.request.permits
        for permit, one in zip(taken, effect.reserved, strict=False):
            permits.reserve(names, permit, one, queries.reservation_seconds)
        permits.free(taken[len(effect.reserved) :])

    def policy_for(self, owned: Owned, user: str) -> str:
        """Return the policy by which gateways pick workers for the user's queries."""
        queries = owned.partition.settings.queries
        return "idle" if self.limits.asks_always(queries, user) else queries.policy

    def _refuse_slot_request(self, _owned: Owned, effect: effects.RefuseSlotRequest) -> None:
        if self._permits is not None:
            self._permits.free(effect.request.permits)
        effect.request.token[0].refuse(effect.problem)

    def _pass_slot_request(self, owned: Owned, effect: effects.PassSlotRequest) -> None:
        request = effect.request
        key, partition = owned.key, owned.partition
        if partition.parent is None:
            return
        now = self._clock.time()
        message = Allocate(
            key.namespace,
            key.queue,
            key.queue_type,
            partition.parent,
            0,
            partition.counts.version,
            request.session,
            request.slots,
            request.priority,
            max(0.0, now - request.since),
            request.user,
            request.hops + 1,
            request.do_not_queue,
            request.permits,
        )

        def done(outcome: Struct | MaitredError) -> None:
            owned.asked.pop(request, None)
            if isinstance(outcome, Allocated):
                self._driver.learn(owned, outcome.counts)
                partition.allocator.parent_answered(request, outcome.allocations)
            elif isinstance(outcome, MaitredError):
                partition.allocator.parent_answered(request, outcome)
            self._driver.touch(owned)

        owned.asked[request] = self._ask(message, max(request.until - now, 0.0), done)

    def _recall_slot_request(self, owned: Owned, effect: effects.RecallSlotRequest) -> None:
        # A slot that the parent has given already is free again when its reservation expires.
        asked = owned.asked.pop(effect.request, None)
        if asked is not None:
            asked.give_up()

    def _answer_attend(self, owned: Owned, effect: effects.AnswerAttend) -> None:
        queries = owned.partition.settings.queries
        passes = []
        for one in effect.passes:
            gateway = one.subscriber
            _, run, result, stream = self.limits.of(queries, gateway.user)
            passes.append(
                Pass(
                    one.token,
                    gateway.session,
                    gateway.user,
                    queries.pass_seconds,
                    run,
                    result,
                    stream,
                    owned.partition.settings.queries.tracebacks,
                )
            )
        counts = self._driver.newer(owned, 0)
        effect.token.answer(Attended(effect.order, counts, passes, effect.best))

    def _answer_subscribe(self, owned: Owned, effect: effects.AnswerSubscribe) -> None:
        queries = owned.partition.settings.queries
        members = [
            Member(one.session, one.worker, one.address, one.slots, token)
            for one, token in effect.members
        ]
        policy = self.policy_for(owned, effect.user)
        effect.token.answer(Roster(effect.version, policy, members, shedding(queries)))

    def _refuse_subscribe(self, _owned: Owned, effect: effects.RefuseSubscribe) -> None:
        effect.token.refuse(effect.problem)


def shedding(queries: QuerySettings) -> SheddingTerms:
    """Return the queue's settings for shedding as gateways are told of them."""
    wanted = queries.shedding
    return SheddingTerms(
        wanted.wait_target_seconds,
        wanted.length,
        wanted.holdback,
        wanted.retry_share,
        wanted.retries_per_second,
    )
