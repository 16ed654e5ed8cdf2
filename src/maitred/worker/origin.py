"""A partition that tasks came from, which gets their heartbeats and their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.protocol.tasks import End
    from maitred.routing.names import QueueId
    from maitred.worker.execution import Execution


class Origin:
    """One partition of one queue, as a worker knows it."""

    def __init__(self, queue: QueueId, partition: int, handler: str) -> None:
        self.queue = queue
        self.name = f"{queue.namespace}/{queue.queue}"
        self.partition = partition
        self.handler = handler
        """The name of the function that its tasks call, for logs."""
        self.lease_seconds = 10.0
        """The lease, as the partition told it last."""
        self.running: dict[tuple[int, int], Execution] = {}
        """Attempts whose end this worker has to report, by sequence number and attempt, the oldest
        first."""
        self.ends: list[End] = []
        """Ends that were not sent yet."""
        self.sending: dict[int, list[End]] = {}
        """Messages with ends that the node has not answered yet, by a number of their own."""
        self.beating = False
        """Whether heartbeats for this partition are under way."""
