"""Changes the controls of queues for operators, at the shards that own their roots.

A change is written with the root before it takes effect. Then the root tells the other partitions,
and repeats that with every look of its caretaker: a partition that could not be reached learns of
it within seconds. If the database has lost the last record and a partition still has it, the root
takes it over from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maitred.errors import ClusterNotUpgraded
from maitred.matching.controls import (
    LiveSetting,
    Pause,
    QueueControls,
    encode_controls,
)
from maitred.protocol.description import QUEUE_CONTROLS
from maitred.protocol.tasks import QueueControlled
from maitred.settings.live import check_set_or_unset, check_settable, check_setting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.tasks import ControlQueue, Synced


class TellingRoots(Protocol):
    """Tells partitions what their root knows."""

    def changing(self, owned: Owned) -> asyncio.Lock:
        """Return the lock under which the counts and the controls of a queue change."""

    async def tell_partitions(self, owned: Owned, also: int = 0) -> dict[int, Synced]:
        """Tell every partition the counts and the controls; return the answers by partition."""


class ControlChanges:
    """Changes the controls of the queues whose roots one shard owns."""

    def __init__(self, roots: TellingRoots, partitions: Partitions) -> None:
        self._roots = roots
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop

    async def control(self, owned: Owned, message: ControlQueue) -> QueueControlled:
        """Carry a request of an operator out."""
        partition = owned.partition
        if message.action != "show":
            # The operator changes what is in force, even if only another partition knows it.
            await self.take_over(owned, await self._roots.tell_partitions(owned))
        async with self._roots.changing(owned):
            before = partition.controls
            if message.action != "show":
                before.check(message.version)
            after = self._changed(owned, message)
            if after is not before:
                self._check_upgraded()
                await self._write(owned, after)
                self._log(owned, message, after)
        if message.action == "show":
            return QueueControlled(after, changed=False, partitions=partition.counts.read, told=0)
        return await self._tell(owned, changed=after is not before)

    async def _tell(self, owned: Owned, *, changed: bool) -> QueueControlled:
        partition = owned.partition
        answers = await self._roots.tell_partitions(owned)
        counts, controls = partition.counts, partition.controls
        told = 1 + sum(_has(answer, controls) for answer in answers.values())
        if told < counts.read:
            owned.tend_at = self._loop.time()  # the caretaker tells the others within a second
        return QueueControlled(controls, changed, counts.read, told)

    def _changed(self, owned: Owned, message: ControlQueue) -> QueueControls:
        controls, range_id = owned.partition.controls, owned.partition.ledger.range_id
        at, reason = self._partitions.wall_clock(), message.reason
        if message.action == "pause":
            return controls.paused(Pause(by=message.user, at=at, reason=reason), range_id)
        if message.action == "resume":
            return controls.resumed(range_id)
        if message.action == "set":
            for name in message.unset:
                check_settable(name)
            check_set_or_unset(message.settings, message.unset)
            values = {
                name: LiveSetting(
                    value=check_setting(name, value), by=message.user, at=at, reason=reason
                )
                for name, value in message.settings.items()
            }
            return controls.set(values, message.unset, range_id)
        return controls

    def _check_upgraded(self) -> None:
        """Refuse a change that a member of an earlier release would not heed."""
        view = self._shard.view
        if view is not None and not view.understands(QUEUE_CONTROLS):
            raise ClusterNotUpgraded(
                "A node of the cluster runs an earlier release, which does not know the controls "
                "of queues.",
                remedy="Upgrade all nodes first; `maitred admin cluster` shows their protocols.",
            )

    async def _write(self, owned: Owned, controls: QueueControls) -> None:
        """Write the controls with the root, and then keep to them. While the store is away the
        change waits for it, and happens when it is back, even if the caller has left."""
        self._partitions.check(owned)
        partition = owned.partition
        async with self._partitions.written(owned) as ticket:
            now = self._loop.time()
            partition.ledger.keep_controls(encode_controls(controls), ticket, now)
        self._partitions.check(owned)
        partition.set_controls(controls, self._loop.time())
        self._partitions.touch(owned)

    async def take_over(self, owned: Owned, answers: Mapping[int, Synced]) -> None:
        """Take over the controls that another partition has, if they are newer: the database has
        lost the root's."""
        told = [one.controls for one in answers.values() if one.controls is not None]
        if told:
            await self._adopt(owned, max(told, key=lambda one: one.version))

    def take_over_later(self, owned: Owned, controls: QueueControls) -> None:
        """Take over the controls with which a partition asks, if they are newer, soon."""
        if controls.version > owned.partition.controls.version:
            self._shard.spawn(self._adopt_logged(owned, controls))

    async def _adopt_logged(self, owned: Owned, controls: QueueControls) -> None:
        with self._shard.failures_logged("controls not taken over"):
            await self._adopt(owned, controls)

    async def _adopt(self, owned: Owned, controls: QueueControls) -> None:
        async with self._roots.changing(owned):
            if controls.version > owned.partition.controls.version:
                await self._write(owned, controls)

    def _log(self, owned: Owned, message: ControlQueue, controls: QueueControls) -> None:
        self._shard.log.info(
            _EVENTS[message.action],
            namespace=owned.key.namespace,
            queue=owned.key.queue,
            user=message.user,
            reason=message.reason,
            version=controls.version,
        )


_EVENTS = {"pause": "queue paused", "resume": "queue resumed", "set": "queue settings changed"}


def _has(answer: Synced, controls: QueueControls) -> bool:
    """Return whether the partition has these controls. One that answers without any knows them."""
    return answer.controls is None or answer.controls.version >= controls.version
