"""A queue that a worker serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.balancing.workers.health import Health
from maitred.worker.origin import Origin
from maitred.worker.streams import gathering

if TYPE_CHECKING:
    from maitred.app.handler import Handler
    from maitred.client.long_poll import LongPoll
    from maitred.client.queues import QueueView
    from maitred.worker.shared_offers import Post


class Served:
    """The handler, where its tasks come from, and what is on offer to it."""

    __slots__ = (
        "asked",
        "asking",
        "function",
        "grouped",
        "handler",
        "health",
        "held_back",
        "is_async",
        "is_stream",
        "name",
        "offers",
        "on_offer",
        "origins",
        "posts",
        "read",
        "signature",
        "view",
    )

    def __init__(self, handler: Handler[Any, Any, Any], view: QueueView, most_bytes: int) -> None:
        self.name = handler.queue
        self.view = view
        self.asked = handler.signature.function
        """What a query calls."""
        self.is_async = handler.is_async
        self.is_stream = handler.signature.is_stream
        self.function = self.asked
        """What a task calls: of a generator, all of it."""
        if self.is_stream:
            self.function = gathering(self.asked, most_bytes, is_async=self.is_async)
        self.handler = getattr(self.asked, "__qualname__", type(self.asked).__qualname__)
        """The name of the function, for logs."""
        self.read = handler.signature.read
        self.signature = handler.signature.describe()
        """What the node tells producers of the arguments."""
        self.health = Health()
        """How its queries end here, beside those of other workers."""
        self.held_back = False
        """Whether that was said to keep slots back."""
        self.offers: dict[LongPoll, None] = {}
        self.on_offer = 0
        """Slots of its own offers."""
        self.asking = 0
        """Offers that they are in."""
        self.posts: list[Post] = []
        """Where it shares slots with other queues."""
        self.grouped = 0
        """Partitions that it had when the posts were found."""
        self.origins: dict[int, Origin] = {}
        """By partition; no more than the queue has."""

    @property
    def has_offers(self) -> bool:
        """Whether slots are on offer to it, its own or shared ones."""
        return self.on_offer > 0 or any(post.on_offer for post in self.posts)

    def origin(self, partition: int) -> Origin:
        """Return the partition of that number, as the worker knows it."""
        found = self.origins.get(partition)
        if found is None:
            found = self.origins[partition] = Origin(self.view.id, partition, self.handler)
        return found
