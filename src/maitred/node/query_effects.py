"""What a partition wants done about queries: slots are given, and asked for above; gateways and
workers hear of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.errors import MaitredError
from maitred.matching import effects
from maitred.node.peer_calls import ask
from maitred.node.query_limits import UserQueryLimits
from maitred.node.shard_permits import ShardPermits
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

    from maitred.matching.slot_requests import AllocatedSlot
    from maitred.node.partition_driver import Owned, PartitionDriver
    from maitred.settings import QuerySettings
    from maitred.surroundings import Surroundings


class QueryEffects:
    """Carries it out, for all partitions of one shard."""

    def __init__(self, driving: PartitionDriver, surroundings: Surroundings) -> None:
        self._driving = driving
        self.limits = UserQueryLimits(driving.shard)
        self.counting = ShardPermits(driving.shard, surroundings)
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
        """Return what the worker is told of a reservation."""
        user = one.request.user
        queries = owned.partition.settings.queries
        limits = self.limits.of(queries, user)
        again = self.limits.again_seconds(queries, user)
        number = owned.key.partition
        return Reserved(number, one.token, user, *limits, again, queries.tracebacks, one.proof)

    def _allocate(self, owned: Owned, effect: effects.AllocateSlot) -> None:
        number = owned.key.partition
        request = effect.request
        if request.slots and not request.hops:
            if request.user:
                self.limits.give_back(request.user, request.slots)
            if owned.partition.settings.queries.rate_per_second is not None:
                name = f"{owned.key.namespace}/{owned.key.queue}"
                self.limits.give_back_to_queue(name, request.slots)
        if request.permits:
            self._count(owned, effect)
        held, version = request.token
        allocations: list[Allocation] = [*effect.above]
        for one in effect.reserved:
            offer = one.offer
            allocations.append(
                Allocation(number, one.token, offer.session, offer.worker, offer.address)
            )
        policy = self.policy_for(owned, request.user)
        told = "" if policy == "idle" else policy
        held.answer(Allocated(allocations, self._driving.newer(owned, version), told))

    def _count(self, owned: Owned, effect: effects.AllocateSlot) -> None:
        """Those that got a slot here are counted by it from now on. Of the others, each has got one
        above, and is counted there, or has none: it will be asked for again."""
        key, queries = owned.key, owned.partition.settings.queries
        name = f"{key.namespace}/{key.queue}"
        limits = self.limits.under_way(queries, name, effect.request.user)
        names = tuple(limit.name for limit in limits)
        permits = effect.request.permits
        for permit, one in zip(permits, effect.reserved, strict=False):
            self.counting.reserve(names, permit, one, queries.reservation_seconds)
        self.counting.free(permits[len(effect.reserved) :])

    def policy_for(self, owned: Owned, user: str) -> str:
        """Return the policy by which the queue's queries are handed out."""
        queries = owned.partition.settings.queries
        return "idle" if self.limits.asks_always(queries, user) else queries.policy

    def _refuse_slot_request(self, _owned: Owned, effect: effects.RefuseSlotRequest) -> None:
        self.counting.free(effect.request.permits)
        effect.request.token[0].refuse(effect.problem)

    def _pass_slot_request(self, owned: Owned, effect: effects.PassSlotRequest) -> None:
        request = effect.request
        key, partition = owned.key, owned.partition
        if partition.parent is None:
            return
        now = self._driving.loop.time()
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
                self._driving.learn(owned, outcome.counts)
                partition.allocator.parent_answered(request, outcome.allocations)
            elif isinstance(outcome, MaitredError):
                partition.allocator.parent_answered(request, outcome)
            self._driving.touch(owned)

        owned.asked[request] = ask(
            self._driving.shard, message, max(request.until - now, 0.0), done
        )

    def _recall_slot_request(self, owned: Owned, effect: effects.RecallSlotRequest) -> None:
        # What the parent may have given already is free again when the reservation's time is up.
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
        counts = self._driving.newer(owned, 0)
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
    """Return what gateways are told of the queue's shedding."""
    wanted = queries.shedding
    return SheddingTerms(
        wanted.wait_target_seconds,
        wanted.length,
        wanted.holdback,
        wanted.retry_share,
        wanted.retries_per_second,
    )
