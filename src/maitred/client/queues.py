"""A client's view of a queue: its partition counts, and the choice of the next partition.

A view starts with one partition and version 0. A node tells newer counts with its answer to a
request of an older version. A lower version never replaces a higher one, whatever the order in
which answers arrive.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from maitred.balancing import BacklogHint, InvalidHint, selector
from maitred.errors import InvalidPartition, ProtocolViolation
from maitred.routing.counts import PartitionCounts

if TYPE_CHECKING:
    from random import Random

    from maitred.balancing import Poll
    from maitred.protocol.tasks import Counts, Offered
    from maitred.routing.names import QueueId


class QueueView:
    """One client's view of one queue."""

    __slots__ = ("_first_turns", "_selector", "counts", "id")

    def __init__(self, queue: QueueId, selection: str, random: Random) -> None:
        self.id = queue
        self.counts = PartitionCounts()
        self._selector = selector(selection, random)
        self._first_turns: Random | None = random
        """Draws how many turns the first write skips; None after that. Without it the first writes
        of all clients would go to the same partition."""

    def __repr__(self) -> str:
        return f"<QueueView {self.id.namespace}/{self.id.queue}, {self.counts}>"

    def learn(self, told: Counts | None) -> None:
        """Apply newer counts; raise `ProtocolViolation` if they are invalid."""
        if told is None or told.version <= self.counts.version:
            return
        try:
            self.counts = PartitionCounts(told.read, told.write, told.version)
        except InvalidPartition as problem:
            raise ProtocolViolation(
                f"The node tells impossible partition counts: {problem}"
            ) from None

    def to_write(self, now: float) -> int:
        """Return the partition for the next tasks."""
        write = self.counts.write
        if write == 1:
            return 0
        if self._first_turns is not None:
            passed, self._first_turns = self._first_turns.randrange(write), None
            for _ in range(passed):
                self._selector.write(self.id, write, now)
        return self._selector.write(self.id, write, now)

    def to_read(self, now: float) -> Poll:
        """Return the partition for the next offer, as a `Poll`; end it with `heard`."""
        return self._selector.read(self.id, self.counts.read, now)

    def heard(self, poll: Poll, offered: Offered, now: float) -> None:
        """Apply the hints and the counts of the answer to an offer."""
        try:
            hint = BacklogHint(offered.backlog, offered.rate)
        except InvalidHint:
            hint = None  # the tasks are valid all the same
        poll.done(now, hint)
        with suppress(ProtocolViolation):  # likewise
            self.learn(offered.counts)
