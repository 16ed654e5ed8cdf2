"""The interface of every algorithm that picks a partition.

A client asks a selector two questions: which partition to write a task to, and which one to poll.
The answer to a write is a number, and the selector need not hear of it again. A poll lasts up to a
minute, and two algorithms depend on how it ends (one counts outstanding polls, one learns from the
answer), so a read returns a `Poll`: a token that is given back exactly once, however the poll ends.

A token that is never given back would make its partition look busy for ever. Three mechanisms
return it: `done`, the end of a `with` block (also by an exception), and the garbage collector. The
collector may run between any two steps of a selector, so `abandoned` only records the token, and
the selector settles it at its next call.

Selectors are pure: `now` and the source of randomness are arguments. They are not thread-safe; a
client has one event loop and one selector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from maitred.balancing.hints import BacklogHint
    from maitred.routing.names import QueueId


class RandomSource(Protocol):
    """Supplies random numbers; `random.Random` is one implementation."""

    def random(self) -> float:
        """Return a float from 0 (included) to 1 (excluded)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return an integer from 0 (included) to `stop` (excluded)."""
        ...


class PollOwner(Protocol):
    """A selector that is told how each of its polls ends."""

    def finished(
        self, queue: QueueId, partition: int, now: float, hint: BacklogHint | None
    ) -> None:
        """Record that the partition answered the poll at `now`; `hint` is None if it sent none."""
        ...

    def abandoned(self, queue: QueueId, partition: int) -> None:
        """Record that the poll ended unanswered; may run between any two steps of the owner."""
        ...


class Poll:
    """The token of one outstanding poll: its queue and partition, to be given back exactly once."""

    __slots__ = ("_owner", "partition", "queue")

    def __init__(self, queue: QueueId, partition: int, owner: PollOwner | None = None) -> None:
        self._owner = owner
        self.queue = queue
        self.partition = partition

    def done(self, now: float, hint: BacklogHint | None = None) -> None:
        """Give the token back: the poll ended at `now`. The second and later calls do nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.finished(self.queue, self.partition, now, hint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._abandon()

    def __del__(self) -> None:
        self._abandon()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A poll cannot be copied or pickled: it is given back once.")

    def __repr__(self) -> str:
        state = "counted" if self._owner is not None else "free"
        return f"<Poll of partition {self.partition} of {self.queue.queue!r}, {state}>"

    def _abandon(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.abandoned(self.queue, self.partition)


class PartitionSelector(Protocol):
    """Picks a partition from 0 to `partitions` - 1 of a queue."""

    def write(self, queue: QueueId, partitions: int, now: float) -> int:
        """Return the partition to add a task to."""
        ...

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        """Return the partition to poll, as a token to give back when the poll ends."""
        ...

    @property
    def entries(self) -> int:
        """How many entries the selector remembers for all queues; this has to stay bounded."""
        ...
