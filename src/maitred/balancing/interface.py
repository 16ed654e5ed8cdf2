"""What every algorithm that picks a partition has in common.

A client asks twice: where to write a task, and where to poll for one. A write is a number and is
forgotten. A poll lasts up to a minute and two algorithms care how it ends (one counts outstanding
polls, one learns from the answer), so a read returns a `Poll`: a token that is given back exactly
once, however the poll ends.

A token that is never given back would make its partition look busy for ever. Three nets hold it:
`done`, the end of a `with` block (also by an exception), and the garbage collector. The collector
may run between any two steps of a selector, so what it finds is only noted by `abandoned` and
settled at the selector's next call.

Selectors are pure: `now` and the randomness come in as arguments. They are not thread-safe; a
client has one event loop and one selector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from maitred.balancing.hints import BacklogHint
    from maitred.routing.names import QueueId


class RandomSource(Protocol):
    """Where randomness comes from; `random.Random` is one."""

    def random(self) -> float:
        """A number from 0 (included) to 1 (excluded)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 (included) to `stop` (excluded)."""
        ...


class PollOwner(Protocol):
    """The selector that wants to know how its polls end."""

    def finished(
        self, queue: QueueId, partition: int, now: float, hint: BacklogHint | None
    ) -> None:
        """The poll was answered at `now`."""
        ...

    def abandoned(self, queue: QueueId, partition: int) -> None:
        """The poll ended without a word. May be called between any two steps of the owner."""
        ...


class Poll:
    """The token of one outstanding poll: where it goes, and the duty to say that it ended."""

    __slots__ = ("_owner", "partition", "queue")

    def __init__(self, queue: QueueId, partition: int, owner: PollOwner | None = None) -> None:
        self._owner = owner
        self.queue = queue
        self.partition = partition

    def done(self, now: float, hint: BacklogHint | None = None) -> None:
        """The poll ended at `now`; the second and every further call does nothing."""
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
        """The partition to add a task to."""
        ...

    def read(self, queue: QueueId, partitions: int, now: float) -> Poll:
        """The partition to poll, as a token to give back when the poll ended."""
        ...

    @property
    def entries(self) -> int:
        """How many things it remembers, of all queues; what has to stay bounded."""
        ...
