"""A queue that a worker serves, and the slots on offer to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from maitred.balancing.workers.health import Health
from maitred.metrics.histogram import Histogram
from maitred.worker.execution import Origin
from maitred.worker.streams import gathering

if TYPE_CHECKING:
    from maitred.app.handler import Handler
    from maitred.client.long_poll import LongPoll
    from maitred.client.queues import QueueView


class SharedSlots(Protocol):
    """A set of partitions, some of them this queue's, that get slots by the same offers."""

    @property
    def on_offer(self) -> int:
        """Slots on offer to the set."""


class Served:
    """A queue's handler, the partitions of the queue, and the slots on offer to it."""

    def __init__(self, handler: Handler[Any, Any, Any], view: QueueView, most_bytes: int) -> None:
        self.name = handler.queue
        self.view = view
        self.asked = handler.signature.function
        """The function that a query calls."""
        self.is_async = handler.is_async
        self.is_stream = handler.signature.is_stream
        self.function = self.asked
        """The function that a task calls; for a generator, one that gathers its rows."""
        if self.is_stream:
            self.function = gathering(self.asked, most_bytes, is_async=self.is_async)
        self.handler = getattr(self.asked, "__qualname__", type(self.asked).__qualname__)
        """The name of the function, for logs."""
        self.read = handler.signature.read
        self.hidden = handler.hidden
        """The parameters whose values stay out of logs and failures; None if there are none."""
        self.signature = handler.describe()
        """The shape of the arguments, which the node tells producers."""
        self.health = Health()
        """How its queries end here, compared with those of other workers."""
        self.held_back = False
        """Whether few slots are offered to it because of its health, as the log says."""
        self.offers: dict[LongPoll, None] = {}
        self.on_offer = 0
        """Slots in its own offers, without shared ones."""
        self.asking = 0
        """Number of its own offers."""
        self.posts: list[SharedSlots] = []
        """The posts at which it shares slots with other queues."""
        self.grouped = 0
        """Number of its partitions when the posts were made."""
        self.runs = Histogram()
        """Counts how long its tasks and queries took."""
        self.origins: dict[int, Origin] = {}
        """The partitions that tasks came from, by number."""

    def __repr__(self) -> str:
        return f"<Served {self.name}, {self.on_offer} slots on offer, {len(self.posts)} posts>"

    @property
    def has_offers(self) -> bool:
        """Whether slots are on offer to this queue, its own or shared ones."""
        return self.on_offer > 0 or any(post.on_offer for post in self.posts)

    def origin(self, partition: int) -> Origin:
        """Return the partition of that number, as the worker knows it."""
        found = self.origins.get(partition)
        if found is None:
            found = self.origins[partition] = Origin(
                self.view.id, partition, self.handler, self.runs
            )
        return found
