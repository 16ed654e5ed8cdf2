"""The requests about queries: of gateways, of workers that attend, and of operators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from maitred.errors import InvalidArgument, InvalidReservation
from maitred.matching.attendance import Attendance
from maitred.matching.hand_out import not_trusted
from maitred.matching.records import PartitionKey
from maitred.matching.reservation_proofs import ReservationProofs
from maitred.matching.slots import SlotRequest
from maitred.node.partitions import check_root
from maitred.node.peer_calls import ASK_SECONDS
from maitred.node.query_effects import shedding
from maitred.node.request_table import RequestTable, long_poll_until, name_user
from maitred.node.waiting_requests import Makes
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import (
    Allocate,
    Allocated,
    Attend,
    Noted,
    Roster,
    Running,
    Subscribe,
    Suspect,
    Suspected,
    WorkerRow,
    Workers,
    WorkersFound,
)
from maitred.protocol.sessions import session_of_secret
from maitred.routing.names import check_shown_name

if TYPE_CHECKING:
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.request_origin import RequestOrigin
    from maitred.node.signature_requests import SignatureRequests
    from maitred.protocol.tasks import Counts
    from maitred.settings import QuerySettings


class QueryRequests:
    """Serves the requests about queries and their slots."""

    def __init__(self, partitions: Partitions, signatures: SignatureRequests) -> None:
        self._partitions = partitions
        self._signatures = signatures
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._limits = partitions.queries.limits
        self._counting = partitions.permits
        holder = partitions.holder
        self.requests = RequestTable(
            holders={
                Opcode.ALLOCATE: holder(
                    self._allocate, makes=Makes.PARTITIONS, absent=_no_slots, touches=True
                ),
                Opcode.SUBSCRIBE: holder(self._subscribe),
                Opcode.SUSPECT: holder(self._suspect),
                Opcode.ATTEND: holder(self._attend, makes=Makes.QUEUES),
                Opcode.WORKERS: holder(self._workers),
                Opcode.RUNNING: self._running,
            },
            admissions={
                Opcode.ALLOCATE: self._admit_allocate,
                Opcode.SUBSCRIBE: self._admit,
                Opcode.SUSPECT: self._admit_suspect,
                Opcode.ATTEND: _admit_attend,
            },
        )

    # Gateways

    def _admit_allocate(self, message: Allocate, connection: RequestOrigin) -> None:
        message.hops, message.permits = 0, []
        self._admit(message, connection)

    def _admit(self, message: Allocate | Subscribe, connection: RequestOrigin) -> None:
        """Name the user who asks, and check that the user may query this queue. On a node with
        users only the node's own gateway may name another user."""
        if connection.user or self._shard.users.required:
            name_user(message, connection)
        if message.user:
            self._limits.check_queue(message.namespace, message.queue, message.user)

    def _admit_suspect(self, message: Suspect, connection: RequestOrigin) -> None:
        """Check that the user may query the queue whose worker is suspected."""
        if connection.user and not connection.is_gateway:
            self._limits.check_queue(message.namespace, message.queue, connection.user)

    def _allocate(self, owned: Owned, message: Allocate, held: DeferredReply) -> None:
        now = self._loop.time()
        if not message.hops:
            queries = owned.partition.settings.queries
            name = f"{message.namespace}/{message.queue}"
            limits = self._limits.under_way(queries, name, message.user)
            if limits:
                if owned.partition.hand_out.withholds:
                    raise not_trusted()  # no permit is taken for slots that cannot be allocated

                def counted(permits: list[bytes]) -> None:
                    self._partitions.check(owned)
                    later = self._loop.time()
                    message.slots, message.permits = len(permits), permits
                    message.waited += later - now
                    self._count_rates(queries, name, message, later)
                    self._want(owned, message, held, later, later - now)

                self._counting.take(limits, message.slots, held, counted)
                return
            self._count_rates(queries, name, message, now)
        self._want(owned, message, held, now)

    def _count_rates(
        self, queries: QuerySettings, name: str, message: Allocate, now: float
    ) -> None:
        self._limits.count_queue(queries, name, message.slots, now)
        if message.user:
            self._limits.count(message.user, message.slots, now)

    def _want(
        self, owned: Owned, message: Allocate, held: DeferredReply, now: float, late: float = 0.0
    ) -> None:
        partition = owned.partition
        user, permits = message.user, message.permits
        request = SlotRequest(
            (held, message.version),
            message.session,
            user,
            message.slots,
            now - message.waited,
            now - late + message.timeout_milliseconds * 0.001,
            message.priority,
            message.hops,
            do_not_queue=message.do_not_queue,
            permits=permits,
        )

        def no_more() -> None:
            partition.allocator.withdraw(request)
            self._partitions.touch(owned)
            self._counting.free(permits)

        held.on_stop = no_more
        waiting = self._limits.user(user).waiting if user else None
        try:
            partition.allocator.request(request, now, waiting)
        finally:
            if request.given:
                self._partitions.touch_lightly(owned)
            else:
                self._partitions.touch(owned)

    def _subscribe(self, owned: Owned, message: Subscribe, held: DeferredReply) -> None:
        check_root(owned)
        partition = owned.partition
        if self._partitions.queries.policy_for(owned, message.user) == "idle":
            queries = partition.settings.queries
            held.answer(Roster(partition.presence.version, "idle", [], shedding(queries)))
            return
        now = self._loop.time()
        session, user = message.session, message.user

        def no_more() -> None:
            partition.subscriptions.subscribe_no_more(session, user, held, self._loop.time())
            self._partitions.touch(owned)

        held.on_stop = no_more
        partition.subscriptions.subscribe(
            session, user, message.version, held, long_poll_until(message, now), now
        )

    def _suspect(self, owned: Owned, message: Suspect, held: DeferredReply) -> None:
        now = self._loop.time()
        if message.refused:
            owned.partition.allocator.slots_refused(message.refused, now)
            held.answer(Suspected(0))
            return
        offers = owned.partition.suspect(message.worker_session, now)
        held.answer(Suspected(offers or 0))
        if offers is None:
            return
        key = owned.key
        # A worker offers the same slots to all of its queues. The caller may report it for this
        # namespace; a worker that lives offers its slots again at once.
        for other in list(self._partitions.owned.values()):
            if (
                other is not owned
                and other.key.namespace == key.namespace
                and other.partition.suspect(message.worker_session, now) is not None
            ):
                self._partitions.touch(other)
        for supply in self._partitions.supplies.of_session(message.worker_session):
            if supply.key[1] == key.namespace:
                for offer in list(supply.offers):
                    if not offer.parts and not offer.gifts:
                        self._partitions.answer_shared(offer)
        if key.partition:
            # The root keeps the presence of workers.
            told = Suspect(key.namespace, key.queue, key.queue_type, 0, 0, message.worker_session)
            self._shard.ask(told, ASK_SECONDS, lambda _: None)

    # Workers

    def _attend(self, owned: Owned, message: Attend, held: DeferredReply) -> None:
        check_root(owned)
        check_shown_name("worker", message.worker)
        if message.limit_reason:
            check_shown_name("reason", message.limit_reason)
        partition = owned.partition
        now = self._loop.time()
        told = Attendance(
            message.session,
            message.worker,
            message.address,
            message.slots,
            message.busy,
            message.state,
            now,
            held,
            long_poll_until(message, now),
            good=message.good,
            limit=message.limit,
            limit_reason=message.limit_reason,
            blocked=message.blocked,
        )

        def no_more() -> None:
            partition.subscriptions.attend_no_more(message.session, held, self._loop.time())
            self._partitions.touch(owned)

        held.on_stop = no_more
        partition.subscriptions.attend(told, now)
        self._signatures.announced(owned, message.signature)

    def _running(self, message: Running, held: DeferredReply) -> None:
        """Note a worker's report. The partition need not be loaded: the proofs are enough."""
        if self._partitions.signing_key:
            self._note_running(message, held, self._partitions.signing_key)
        else:
            self._partitions.answering(held, self._note_running_later(message, held))

    async def _note_running_later(self, message: Running, held: DeferredReply) -> None:
        self._note_running(message, held, await self._partitions.load_signing_key())

    def _note_running(self, message: Running, held: DeferredReply, signing_key: bytes) -> None:
        namespace, queue, session = message.namespace, message.queue, message.session
        key = PartitionKey(namespace, queue, message.queue_type, message.partition)
        queries = self._partitions.settings_of(key).queries
        proofs = ReservationProofs(signing_key, key)
        refused = 0
        for user, proven in message.running.items():
            limits = self._limits.under_way(queries, f"{namespace}/{queue}", user)
            names = tuple(limit.name for limit in limits)
            verify = partial(proofs.verify, session, user)
            refused += self._counting.runs(names, proven, verify)
        for user, proven in message.ended.items():
            refused += self._counting.ended(proven, partial(proofs.verify, session, user))
        if refused:
            self._shard.count_error(InvalidReservation.code)
        held.answer(Noted(refused))

    # Operators

    def _workers(self, owned: Owned, message: Workers, held: DeferredReply) -> None:
        check_root(owned)
        partition = owned.partition
        now = self._loop.time()
        if message.action == "list":
            found = list(partition.presence.workers.values())
            if message.worker:
                found = partition.presence.find(message.worker)
        else:
            if not message.worker:
                raise InvalidArgument("Which worker?", remedy="Name it, or its session.")
            found = partition.subscriptions.order(message.worker, message.action, now)
        held.answer(WorkersFound([worker_row(one, now) for one in found]))


def _admit_attend(message: Attend, connection: RequestOrigin) -> None:
    message.session = session_of_secret(message.session)
    name_user(message, connection)


def _no_slots(_message: Allocate, counts: Counts | None) -> Allocated | None:
    """Answer with the counts of the queue: the gateway's are out of date, and it asks again."""
    return Allocated([], counts) if counts else None


def worker_row(one: Attendance, now: float) -> WorkerRow:
    """Return a worker as operators see it."""
    return WorkerRow(
        session=one.session,
        worker=one.worker,
        address=one.address,
        slots=one.slots,
        busy=one.busy,
        state=one.state,
        heard_seconds=round(max(0.0, now - one.heard), 3),
        suspected=one.suspected,
        good=round(one.good, 3),
        limit=one.limit,
        limit_reason=one.limit_reason,
        blocked=one.blocked,
    )
