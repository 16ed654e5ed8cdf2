"""Asking partitions for their dead letters, and doing something with them.

A partition may have a million. So they are asked for in pages, of which each begins behind the last
letter of the one before; and what is done with all of them is done page by page, too. Letters that
come in the meantime wait for the next time: no partition is done more often than it had letters at
the beginning, so a task that dies again at once cannot keep the command busy for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from maitred.cli.admin_ask import ROOT, Silent, described, each
from maitred.cli.admin_names import LetterId, by_partition
from maitred.errors import UnknownQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import DeadLetter, DeadLettersFound
    from maitred.routing.names import QueueId

PAGE = 200
"""Letters of one answer: each may have a traceback of some kilobytes."""

BATCH = 1_000
"""Letters that are named in one request."""

Action = Literal["list", "show", "retry", "drop"]


class LetterCounts(NamedTuple):
    """The number of dead letters of each partition, and the partitions that did not answer."""

    totals: dict[int, int]
    silent: dict[int, Silent]

    @property
    def total(self) -> int:
        return sum(self.totals.values())


class Done(NamedTuple):
    """To which letters something was done, and who did not answer."""

    ids: list[LetterId]
    silent: dict[int, Silent]


async def ask(
    client: AsyncClient,
    queue: QueueId,
    partition: int,
    action: Action,
    sequences: Iterable[int] = (),
    most: int = PAGE,
) -> DeadLettersFound:
    """One request."""
    from maitred.protocol.tasks import DeadLetters

    message = DeadLetters(*queue, partition, 0, action, list(sequences), most)
    return cast("DeadLettersFound", await client.request(message))


async def held(client: AsyncClient, queue: QueueId) -> LetterCounts:
    """Count the letters of every partition that can be read, and of those that were removed: their
    tasks were done first, but letters stay until somebody decides."""
    partitions = range((await described(client, queue, ROOT)).counts.read)
    found = await each(partitions, lambda at: ask(client, queue, at, "list", most=1))
    answers = dict(zip(partitions, found, strict=True))
    answers |= await _of_removed(client, queue, len(partitions))
    return LetterCounts(
        {at: one.total for at, one in answers.items() if not isinstance(one, Silent)},
        {at: one for at, one in answers.items() if isinstance(one, Silent)},
    )


async def _of_removed(
    client: AsyncClient, queue: QueueId, partition: int
) -> dict[int, DeadLettersFound | Silent]:
    """Partitions are made one after the other: those that once were end where one never was."""
    found: dict[int, DeadLettersFound | Silent] = {}
    while True:
        (answer,) = await each([partition], lambda at: ask(client, queue, at, "list", most=1))
        if isinstance(answer, Silent):
            return found if isinstance(answer.error, UnknownQueue) else found | {partition: answer}
        found[partition] = answer
        partition += 1


async def pages(
    client: AsyncClient, queue: QueueId, partition: int, most: int, after: int | None = None
) -> AsyncIterator[list[DeadLetter]]:
    """The letters of a partition in their order, `most` at most."""
    while most > 0:
        size = min(most, PAGE)
        begin = () if after is None else (after,)
        letters = (await ask(client, queue, partition, "list", begin, size)).letters
        if letters:
            yield letters
            after = letters[-1].sequence
            most -= len(letters)
        if len(letters) < size:
            return


async def do_to(client: AsyncClient, queue: QueueId, action: Action, ids: list[LetterId]) -> Done:
    """Retry or drop these; those that are not there are left out of the answer."""
    batches = [
        (partition, sequences[begin : begin + BATCH])
        for partition, sequences in by_partition(ids).items()
        for begin in range(0, len(sequences), BATCH)
    ]
    answers = await each(
        batches, lambda batch: ask(client, queue, batch[0], action, batch[1], len(batch[1]))
    )
    done: list[LetterId] = []
    silent = {}
    for (partition, _), answer in zip(batches, answers, strict=True):
        if isinstance(answer, Silent):
            silent[partition] = answer
        else:
            done += map(LetterId.of, answer.letters)
    return Done(done, silent)


async def do_to_all(
    client: AsyncClient,
    queue: QueueId,
    action: Action,
    of: LetterCounts,
    tell: Callable[[int], None],
) -> Done:
    """Retry or drop all that there were; `tell` hears how many are done."""
    done: list[LetterId] = []

    async def empty(partition: int) -> None:
        async for letters in pages(client, queue, partition, of.totals[partition]):
            sequences = [letter.sequence for letter in letters]
            answer = await ask(client, queue, partition, action, sequences, len(sequences))
            done.extend(map(LetterId.of, answer.letters))
            tell(len(done))

    partitions = [at for at, total in of.totals.items() if total]
    answers = await each(partitions, empty)
    silent = {
        at: one for at, one in zip(partitions, answers, strict=True) if isinstance(one, Silent)
    }
    return Done(done, of.silent | silent)
