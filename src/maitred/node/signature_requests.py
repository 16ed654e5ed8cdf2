"""What arguments the handlers of a queue take: announced by workers, asked by producers.

The root of a queue has the signatures. The row of an earlier owner is read when the first worker
attends or the first producer asks, and not with every load of a partition: most loads need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import MaitredError
from maitred.matching.signatures import SIGNATURES_ROW
from maitred.node.partitions import check_root
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import Signatures, SignaturesFound

if TYPE_CHECKING:
    import asyncio

    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.partition_driver import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.tasks import Counts


class SignatureRequests:
    """Serves them, for all roots of a shard."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self._reading: dict[Owned, asyncio.Task[None]] = {}
        serve = partitions.holder(self._signatures, absent=_never_served)
        self.requests = RequestTable(holders={Opcode.SIGNATURES: serve})

    def announced(self, owned: Owned, signature: bytes) -> None:
        """A worker attends with a handler of this signature."""
        owned.partition.announce(signature, self._loop.time())
        if not owned.partition.signatures.is_complete:
            self._read(owned)

    async def complete(self, owned: Owned) -> None:
        """Have the signatures that an earlier owner knew, if the store says them."""
        if not owned.partition.signatures.is_complete:
            await self._read(owned)

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
        held.answer(SignaturesFound(known, partition.served_seconds_ago(now)))

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
            # The next worker that attends, or the next who asks, has it read again.
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
