"""Effects of tasks: answers to producers and workers, reads of the store, counters and warnings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maitred.errors import InvalidProof
from maitred.logs import OccasionalWarning
from maitred.matching import effects
from maitred.matching.attempt_proofs import session_of, user_of
from maitred.protocol.tasks import Given, Heard, Offered, Outcome, Revoked
from maitred.telemetry.tracing import TaskId
from maitred.trace_context import NOT_RECORDED, is_recorded, is_wait_recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.matching.partition import Partition
    from maitred.matching.slots import AllocatedSlot, WaitingOffer
    from maitred.node.driver_shell import BacklogStore, DriverShell
    from maitred.node.effect_driver import TaskDriver
    from maitred.node.owned import Owned
    from maitred.protocol.tasks import Reserved
    from maitred.telemetry.tracing import Tracing

Reading = TypeVar("Reading", effects.Read, effects.ReadLater)
Row = TypeVar("Row")

READ_RETRY_SECONDS: Final = 0.5
"""Pause before a failed read of the store is tried again."""


class TaskEffects:
    """Carries out what partitions want done about their tasks."""

    def __init__(
        self,
        driver: TaskDriver,
        shell: DriverShell,
        store: BacklogStore,
        reserved: Callable[[Owned, AllocatedSlot], Reserved],
    ) -> None:
        """`reserved` returns a reservation as its worker is told of it."""
        self._driver = driver
        self._shell = shell
        self._clock = shell.loop
        self._tracing = shell.tracing
        self._store = store
        self._newer = driver.newer
        self._reserved = reserved
        self._unproven_warning = OccasionalWarning(
            shell.log, "attempts refused: the caller was not given them"
        )
        self._not_kept_warning = OccasionalWarning(
            shell.log, "not kept: the store has no room within the quotas"
        )
        self._damaged_warning = OccasionalWarning(shell.log, "damaged rows set aside")
        self._unread_warning = OccasionalWarning(shell.log, "backlog not read")
        self.carry_out: dict[type[effects.Effect], Callable[[Owned, Any], None]] = {
            effects.Give: self._give,
            effects.NothingFor: self._nothing_for,
            effects.Settle: self._settle,
            effects.Tell: self._tell,
            effects.RefuseToTell: self._refuse_to_tell,
            effects.TellRevoked: self._tell_revoked,
            effects.TellSighting: self._tell_sighting,
            effects.Beat: self._beat,
            effects.SetAside: self._set_aside,
            effects.Unproven: self._unproven,
            effects.NotKept: self._not_kept,
            effects.Read: self._read,
            effects.ReadLater: self._read_later,
        }

    # Answers to workers

    def _give(self, owned: Owned, effect: effects.Give) -> None:
        now = self._clock.time()
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
                task.trace,
            )
            for task in effect.tasks
            if task.holder is holder  # else its lease ended before anybody heard of it
        ]
        given += [Given(*foreign) for foreign in effect.foreign]
        if self._tracing is not None:
            self._record_waits(self._tracing, owned, given)
        reserved = [*effect.reserved_above]
        reserved += [self._reserved(owned, one) for one in effect.reserved]
        self._offered(owned, effect.offer, given, partition, now, reserved)

    def _record_waits(self, tracing: Tracing, owned: Owned, given: list[Given]) -> None:
        key = owned.key
        for one in given:
            trace = one.trace
            if not trace or trace == NOT_RECORDED:  # `is_recorded`, without a call for each task
                continue
            if is_recorded(trace) and not is_wait_recorded(trace):
                task = TaskId(f"{key.namespace}/{key.queue}", one.partition, one.sequence)
                forwarded = one.partition != key.partition
                one.trace = tracing.waited(
                    trace, task, one.attempt, one.waited, forwarded=forwarded
                )

    def _nothing_for(self, owned: Owned, effect: effects.NothingFor) -> None:
        self._offered(owned, effect.offer, [], owned.partition, self._clock.time(), [])

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
            self._newer(owned, version),
            reserved,
        )
        if shared is None or supply is None:
            offer.token[0].answer(offered)
            return
        if offered.counts is not None:
            supply.versions[index] = offered.counts.version
        shared.gifts.append((index, offered))
        self._driver.gave.setdefault(shared, True)

    def _beat(self, _owned: Owned, effect: effects.Beat) -> None:
        effect.token.answer(Heard(effect.lost, effect.revoked))

    # Answers to producers

    def _settle(self, owned: Owned, effect: effects.Settle) -> None:
        ticket = effect.ticket
        ticket.token(owned, ticket.problem)

    def _tell(self, _owned: Owned, effect: effects.Tell) -> None:
        ended = effect.ended
        effect.token.answer(Outcome(ended.status, ended.attempts, ended.body))

    def _refuse_to_tell(self, _owned: Owned, effect: effects.RefuseToTell) -> None:
        effect.token.refuse(effect.problem)

    def _tell_revoked(self, _owned: Owned, effect: effects.TellRevoked) -> None:
        effect.token.answer(Revoked(effect.state))

    def _tell_sighting(self, _owned: Owned, effect: effects.TellSighting) -> None:
        effect.token.answer(effect.sighting)

    # Warnings

    def _set_aside(self, owned: Owned, effect: effects.SetAside) -> None:
        row = effect.row
        self._shell.damaged["rows"] += 1
        self._shell.damaged["tasks"] += row.tasks
        self._damaged_warning.say(
            self._clock.time(),
            namespace=owned.key.namespace,
            queue=owned.key.queue,
            partition=owned.key.partition,
            kind=row.kind,
            first=row.first,
            tasks=row.tasks,
            reason=row.reason,
        )

    def _unproven(self, owned: Owned, effect: effects.Unproven) -> None:
        session, user = session_of(effect.holder), user_of(effect.holder)
        self._shell.errors[InvalidProof.code] += effect.attempts
        self._unproven_warning.say(
            self._clock.time(),
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
            self._clock.time(),
            namespace=owned.key.namespace,
            queue=owned.key.queue,
            partition=owned.key.partition,
            what=effect.what,
            task=effect.sequence,
            bytes=effect.size,
        )

    # Reads

    def _read(self, owned: Owned, effect: effects.Read) -> None:
        reading = effect.reading
        read = partial(
            self._store.segments,
            owned.key,
            reading.priority,
            reading.after,
            reading.tasks,
            reading.most_bytes,
        )
        arrived = owned.partition.store_replies.segments_read
        self._shell.spawn(self._do_read(owned, effect, read, arrived))

    def _read_later(self, owned: Owned, effect: effects.ReadLater) -> None:
        before = effect.before + owned.partition.ledger.wall
        read = partial(self._store.later, owned.key, before, effect.most, effect.most_bytes)
        arrived = owned.partition.store_replies.later_read
        self._shell.spawn(self._do_read(owned, effect, read, arrived))

    async def _do_read(
        self,
        owned: Owned,
        effect: Reading,
        read: Callable[[], Coroutine[Any, Any, list[Row]]],
        arrived: Callable[[list[Row], Reading, float], None],
    ) -> None:
        try:
            found = await read()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the backlog is read again
            now = self._clock.time()
            self._unread_warning.say(now, queue=owned.key.queue, error=problem)
            self._clock.call_at(now + READ_RETRY_SECONDS, self._read_again, owned, effect)
            return
        try:
            arrived(found, effect, self._clock.time())
        except Exception as fault:  # noqa: BLE001 - half of it may be in memory
            self._driver.failed(owned, fault)
        self._driver.touch(owned)

    def _read_again(self, owned: Owned, effect: effects.Read | effects.ReadLater) -> None:
        owned.partition.store_replies.read_failed(effect)
        self._driver.touch(owned)
