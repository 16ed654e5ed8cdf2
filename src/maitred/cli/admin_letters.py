"""Asking partitions for their dead letters, and retrying or dropping them.

A partition may have a million, so they are read in pages, each of which begins behind the last
letter of the one before, and retried or dropped page by page. Letters that arrive meanwhile are
left for the next time: no partition is asked to act on more letters than it had at the beginning,
so a task that dies again at once cannot keep the command busy for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from maitred.cli.admin_names import LetterId
from maitred.client.answers import Silent, each, each_partition

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


class ChangedLetters(NamedTuple):
    """The letters that were retried or dropped, and the partitions that did not answer."""

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
    """Send one request to one partition."""
    from maitred.protocol.tasks import DeadLetters

    message = DeadLetters(*queue, partition, 0, action, list(sequences), most)
    return cast("DeadLettersFound", await client.request(message))


async def letter_counts(client: AsyncClient, queue: QueueId) -> LetterCounts:
    """Count the letters of every partition, including removed ones."""
    answers = await each_partition(client, queue, lambda at: ask(client, queue, at, "list", most=1))
    return LetterCounts({at: one.total for at, one in answers.found.items()}, answers.silent)


async def pages(
    client: AsyncClient, queue: QueueId, partition: int, most: int, after: int | None = None
) -> AsyncIterator[list[DeadLetter]]:
    """Yield the letters of a partition in their order, `most` at most."""
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


async def change(
    client: AsyncClient, queue: QueueId, action: Action, ids: list[LetterId]
) -> ChangedLetters:
    """Retry or drop these letters; those that do not exist are left out of the answer."""
    by_partition: dict[int, list[int]] = {}
    for partition, sequence in sorted(set(ids)):
        by_partition.setdefault(partition, []).append(sequence)
    batches = [
        (partition, tuple(sequences[begin : begin + BATCH]))
        for partition, sequences in by_partition.items()
        for begin in range(0, len(sequences), BATCH)
    ]
    answers = await each(
        batches, lambda batch: ask(client, queue, batch[0], action, batch[1], len(batch[1]))
    )
    return ChangedLetters(
        [LetterId.of(letter) for one in answers.found.values() for letter in one.letters],
        {partition: problem for (partition, _), problem in answers.silent.items()},
    )


async def change_all(
    client: AsyncClient,
    queue: QueueId,
    action: Action,
    counts: LetterCounts,
    progress: Callable[[int], None],
) -> ChangedLetters:
    """Retry or drop as many letters as were counted; `progress` gets the number that is done."""
    done: list[LetterId] = []

    async def empty(partition: int) -> None:
        async for letters in pages(client, queue, partition, counts.totals[partition]):
            sequences = [letter.sequence for letter in letters]
            answer = await ask(client, queue, partition, action, sequences, len(sequences))
            done.extend(map(LetterId.of, answer.letters))
            progress(len(done))

    answers = await each([at for at, total in counts.totals.items() if total], empty)
    return ChangedLetters(done, counts.silent | answers.silent)
