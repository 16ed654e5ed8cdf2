"""What a partition wants done about queries: slots are given, and asked for above; gateways and
workers hear of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.errors import MaitredError
from maitred.matching import effects
from maitred.node.asking import ask
from maitred.node.counting import Counting
from maitred.node.query_limits import QueryLimits
from maitred.protocol.queries import (
    Allocate,
    Allocated,
    Allocation,
    Attended,
    Member,
    Pass,
    Roster,
    Shedding,
)
from maitred.protocol.tasks import Reserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.matching.queries import Reservation
    from maitred.node.driving import Driving, Owned
    from maitred.settings import Queries
    from maitred.surroundings import Surroundings


class QueryEffects:
    """Carries it out, for all partitions of one shard."""

    def __init__(self, driving: Driving, surroundings: Surroundings) -> None:
        self._driving = driving
        self.limits = QueryLimits(driving.shard)
        self.counting = Counting(driving.shard, surroundings)
        self.carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            effects.Allocate: self._allocate,
            effects.RefuseWanted: self._refuse_wanted,
            effects.PassWanted: self._pass_wanted,
            effects.RecallWanted: self._recall_wanted,
            effects.AnswerAttend: self._answer_attend,
            effects.AnswerSubscribe: self._answer_subscribe,
            effects.RefuseSubscribe: self._refuse_subscribe,
        }

    def reserved(self, owned: Owned, one: Reservation) -> Reserved:
        """What the worker hears of it."""
        user = one.wanted.user
        queries = owned.partition.settings.queries
        limits = self.limits.of(queries, user)
        again = self.limits.again_seconds(queries, user)
        number = owned.key.partition
        return Reserved(number, one.token, user, *limits, again, queries.tracebacks, one.proof)

    def _allocate(self, owned: Owned, effect: effects.Allocate) -> None:
        number = owned.key.partition
        wanted = effect.wanted
        if wanted.slots and not wanted.hops:
            if wanted.user:
                self.limits.give_back(wanted.user, wanted.slots)
            if owned.partition.settings.queries.rate_per_second is not None:
                name = f"{owned.key.namespace}/{owned.key.queue}"
                self.limits.give_back_to_queue(name, wanted.slots)
        if wanted.permits:
            self._count(owned, effect)
        held, version = wanted.token
        allocations: list[Allocation] = [*effect.above]
        for one in effect.reserved:
            offer = one.offer
            allocations.append(
                Allocation(number, one.token, offer.session, offer.worker, offer.address)
            )
        policy = self.policy_for(owned, wanted.user)
        told = "" if policy == "idle" else policy
        held.answer(Allocated(allocations, self._driving.newer(owned, version), told))

    def _count(self, owned: Owned, effect: effects.Allocate) -> None:
        """Those that got a slot here are counted by it from now on. Of the others, each has got one
        above, and is counted there, or has none: it will be asked for again."""
        key, queries = owned.key, owned.partition.settings.queries
        name = f"{key.namespace}/{key.queue}"
        limits = self.limits.under_way(queries, name, effect.wanted.user)
        names = tuple(limit.name for limit in limits)
        permits = effect.wanted.permits
        for permit, one in zip(permits, effect.reserved, strict=False):
            self.counting.seat(names, permit, one, queries.reservation_seconds)
        self.counting.free(permits[len(effect.reserved) :])

    def policy_for(self, owned: Owned, user: str) -> str:
        """How the queue's queries are handed out."""
        queries = owned.partition.settings.queries
        return "idle" if self.limits.asks_always(queries, user) else queries.policy

    def _refuse_wanted(self, _owned: Owned, effect: effects.RefuseWanted) -> None:
        self.counting.free(effect.wanted.permits)
        effect.wanted.token[0].refuse(effect.problem)

    def _pass_wanted(self, owned: Owned, effect: effects.PassWanted) -> None:
        wanted = effect.wanted
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
            wanted.session,
            wanted.slots,
            wanted.priority,
            max(0.0, now - wanted.since),
            wanted.user,
            wanted.hops + 1,
            wanted.do_not_queue,
            wanted.permits,
        )

        def done(outcome: Struct | MaitredError) -> None:
            owned.asked.pop(wanted, None)
            if isinstance(outcome, Allocated):
                self._driving.learn(owned, outcome.counts)
                partition.allocator.wanted_answered(wanted, outcome.allocations)
            elif isinstance(outcome, MaitredError):
                partition.allocator.wanted_answered(wanted, outcome)
            self._driving.touch(owned)

        owned.asked[wanted] = ask(self._driving.shard, message, max(wanted.until - now, 0.0), done)

    def _recall_wanted(self, owned: Owned, effect: effects.RecallWanted) -> None:
        # What the parent may have given already is free again when the reservation's time is up.
        asked = owned.asked.pop(effect.wanted, None)
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


def shedding(queries: Queries) -> Shedding:
    """What gateways are told of it."""
    wanted = queries.shedding
    return Shedding(
        wanted.wait_target_seconds,
        wanted.length,
        wanted.holdback,
        wanted.retry_share,
        wanted.retries_per_second,
    )
