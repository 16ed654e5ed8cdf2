"""The signatures of a queue's handlers, which workers announce and producers ask for.

The root of a queue has the signatures. The shard reads the row of an earlier owner when the first
worker attends or the first producer asks, not with every load: most loads do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import InternalError, MaitredError
from maitred.matching.signatures import SIGNATURES_ROW
from maitred.node.partitions import check_root
from maitred.node.request_table import RequestTable
from maitred.node.task_privacy import HandlerKnowledge
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import Signatures, SignaturesFound
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    import asyncio

    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.tasks import Counts


class SignatureRequests:
    """Serves the requests for signatures, for all roots of a shard."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self._reading: dict[Owned, asyncio.Task[None]] = {}
        serve = partitions.holder(self._signatures, absent=_never_served)
        self.requests = RequestTable(holders={Opcode.SIGNATURES: serve})

    def announced(self, owned: Owned, signature: bytes) -> None:
        """Note the signature of a handler whose worker attends."""
        owned.partition.announce(signature, self._loop.time())
        if not owned.partition.signatures.is_complete:
            self._read(owned)

    async def complete(self, owned: Owned) -> None:
        """Read the signatures of an earlier owner from the store, unless that was done."""
        if not owned.partition.signatures.is_complete:
            await self._read(owned)

    async def of_queue(self, namespace: str, queue: str) -> list[bytes]:
        """Ask the root of a queue for its signatures; there are none if there is no such queue."""
        answer = await self._partitions.question(Signatures(namespace, queue, TASKS, 0, 0))
        if not isinstance(answer, SignaturesFound):
            raise InternalError("The root did not answer with signatures.")
        return answer.signatures

    async def handlers(self, owned: Owned) -> HandlerKnowledge:
        """Return what the root of the partition's queue knows of its handlers."""
        if not owned.key.partition:
            await self.complete(owned)
            self._partitions.check(owned)
            now = self._loop.time()
            known = owned.partition.signatures.known(now + owned.partition.ledger.wall)
        else:
            answer = await self._partitions.question(Signatures(*owned.key[:3], 0, 0))
            if not isinstance(answer, SignaturesFound):
                raise InternalError("The root did not answer with signatures.")
            known = answer.signatures
            self._partitions.check(owned)
        return HandlerKnowledge.of(known)

    def _signatures(self, owned: Owned, _message: Signatures, held: DeferredReply) -> None:
        check_root(owned)
        if owned.partition.signatures.is_complete:
            self._answer(owned, held)
        else:
            self._partitions.answering(held, self._answer_later(owned, held))

    async def _answer_later(self, owned: Owned, held: DeferredReply) -> None:
        await self.complete(owned)
        self._answer(owned, held)

    def _answer(self, owned: Owned, held: DeferredReply) -> None:
        partition, now = owned.partition, self._loop.time()
        known = partition.signatures.known(now + partition.ledger.wall)
        pause = partition.controls.pause
        paused = None if pause is None else max(now + partition.ledger.wall - pause.at, 0.0)
        held.answer(SignaturesFound(known, partition.served_seconds_ago(now), paused))

    def _read(self, owned: Owned) -> asyncio.Task[None]:
        reading = self._reading.get(owned)
        if reading is None:
            reading = self._reading[owned] = self._partitions.shard.spawn(self._do_read(owned))
            reading.add_done_callback(lambda _: self._reading.pop(owned, None))
        return reading

    async def _do_read(self, owned: Owned) -> None:
        partition = owned.partition
        try:
            row = await self._partitions.store.result(owned.key, SIGNATURES_ROW)
        except MaitredError as problem:
            # The next worker that attends, or the next producer that asks, causes another read.
            self._partitions.shard.log.debug(
                "signatures not read", queue=owned.key.queue, error=problem
            )
            return
        now = self._loop.time()
        partition.signatures.merge(
            row.body if row is not None else None, now + partition.ledger.wall
        )
        partition.keep_signatures(now)
        self._partitions.touch(owned)


def _never_served(message: Signatures, _counts: Counts | None) -> SignaturesFound | None:
    return None if message.must_exist else SignaturesFound([])
