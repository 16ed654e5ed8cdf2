"""Offers of workers to many partitions of this shard at once (OFFER_MANY)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from maitred.errors import MaitredError
from maitred.matching.attempt_proofs import holder_of
from maitred.matching.records import PartitionKey
from maitred.matching.slots import SharedOffer, SharedSupply
from maitred.node.deferred_reply import DeferredReply
from maitred.node.request_table import RequestTable, long_poll_until, name_worker
from maitred.node.waiting_requests import Makes, RequestKind, WaitingRequest
from maitred.protocol.frames import Opcode
from maitred.protocol.refusals import encode_error
from maitred.protocol.shared_offers import OfferedMany, OfferMany
from maitred.protocol.tasks import Describe, Offer, Offered
from maitred.routing.names import check_shown_name
from maitred.wire.alarm import Alarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.tasks import Counts


class SharedOfferRequests:
    """Serves OFFER_MANY, and answers shared offers when their long poll ends."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._supplies = partitions.supplies
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._alarm = Alarm(self._loop, self._rings)
        self._join = RequestKind(self._joined, Makes.QUEUES, _not_there)
        self.requests = RequestTable(
            holders={Opcode.OFFER_MANY: self._offer_many},
            admissions={Opcode.OFFER_MANY: name_worker},
        )

    def _offer_many(self, message: OfferMany, held: DeferredReply) -> None:
        check_shown_name("worker", message.worker)
        supplies = self._supplies
        if message.members:
            supply = self._named(message, held)
        else:
            holder = holder_of(message.session, message.user)
            supply = supplies.find(holder, message.namespace, message.number)
            if supply is None:
                held.answer(OfferedMany([], known=False))
        if supply is None:
            return
        supply.worker, supply.address = message.worker, message.address
        now = self._loop.time()
        first = PartitionKey(
            message.namespace, message.queue, message.queue_type, message.partition
        )
        owned = self._partitions.owned.get(first)
        settings = (
            owned.partition.settings if owned is not None else self._partitions.settings_of(first)
        )
        until = min(now + settings.offer_seconds, long_poll_until(message, now))
        offer = SharedOffer(supply, held, message.slots, now, until)
        held.on_stop = partial(self._withdraw, offer)
        supplies.offer(offer, now)
        if until < self._alarm.at:
            self._alarm.by(until)
        if message.members:
            self._load(supply, message)
        self._partitions.serve(supply, now)

    def _named(self, message: OfferMany, held: DeferredReply) -> SharedSupply | None:
        """Return the set that the message names; None, after an answer that says so, if this shard
        does not own all of its partitions."""
        shard = self._shard
        members: dict[PartitionKey, int] = {}
        elsewhere = []
        for index, one in enumerate(message.members):
            key = PartitionKey(message.namespace, one.queue, one.queue_type, one.partition)
            owner = shard.settled.get(key)
            if owner is None:
                owner = shard.owner_of(Describe(*key, 0))
            if owner == shard.number:
                members[key] = index
            else:
                elsewhere.append((index, owner))
        if elsewhere:
            held.answer(OfferedMany([], elsewhere=elsewhere))
            return None
        versions = [one.version for one in message.members]
        supply = SharedSupply(
            message.session, message.user, message.namespace, message.number, members, versions
        )
        self._supplies.name(supply)
        return supply

    def _load(self, supply: SharedSupply, message: OfferMany) -> None:
        """Load every partition of the set, or create it."""
        partitions = self._partitions
        for key, index in list(supply.members.items()):
            join = Offer(
                *key,
                message.timeout_milliseconds,
                supply.versions[index],
                message.session,
                message.worker,
                1,
                user=message.user,
            )
            joining = Joining(partial(self._told, supply, index))
            owned = partitions.owned.get(key)
            if owned is not None:
                self._joined(owned, join, joining)
            elif not partitions.has(key):  # a partition that is being loaded finds the set itself
                partitions.load_for(key, WaitingRequest(self._join, join, joining))

    def _joined(self, owned: Owned, message: Offer, held: DeferredReply) -> None:
        """Let a loaded partition use the set, and tell the worker newer counts."""
        now = self._loop.time()
        owned.last_used = now
        partition = owned.partition
        partition.worker_sightings.heard(message.session, message.worker, now)
        self._supplies.note(partition.matcher)
        counts = self._partitions.newer(owned, message.version)
        if counts is not None:
            held.answer(Offered([], partition.settings.lease_seconds, 0, 0.0, counts))

    def _told(self, supply: SharedSupply, index: int, outcome: Struct | MaitredError) -> None:
        """Tell the worker the counts of one partition of its set, or why it was not loaded."""
        if isinstance(outcome, MaitredError):
            supply.refused.append((index, encode_error(outcome)))
        first = next(iter(supply.offers), None)
        if first is not None:
            if isinstance(outcome, Offered) and outcome.counts is not None:
                supply.versions[index] = outcome.counts.version
                first.gifts.append((index, outcome))
            self._partitions.tell_shared(first)

    def _withdraw(self, offer: SharedOffer) -> None:
        """Close an offer whose worker no longer waits, and take back the tasks it was given."""
        if not self._supplies.close(offer):
            return
        now = self._loop.time()
        for key, part in list(offer.parts.items()):
            owned = self._partitions.owned.get(key)
            if owned is not None:
                owned.partition.matcher.withdraw(part, now)
                self._partitions.touch(owned)

    # Time

    def _rings(self, by: float) -> float:
        now = self._loop.time()
        for offer in self._supplies.due(by):
            self._partitions.answer_shared(offer)
            supply = offer.supply
            for key in supply.members:
                owned = self._partitions.owned.get(key)
                if owned is not None:
                    owned.partition.worker_sightings.heard(supply.session, supply.worker, now)
        return self._supplies.next_due()


class Joining(DeferredReply):
    """The reply to a request that loads one partition of a set; passes the outcome on at once."""

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[Struct | MaitredError], None]) -> None:
        super().__init__()
        self._told = told

    @property
    def wanted(self) -> bool:
        return True

    def answer(self, message: Struct) -> None:
        self._told(message)

    def refuse(self, problem: MaitredError) -> None:
        self._told(problem)


def _not_there(_message: Offer, counts: Counts | None) -> Offered | None:
    """Answer with the counts of the queue: the worker's are out of date."""
    return Offered([], 0.0, 0, 0.0, counts) if counts else None
