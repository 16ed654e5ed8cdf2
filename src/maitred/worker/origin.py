"""A partition that tasks came from: there their heartbeats go, and there they are finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitred.protocol.tasks import End
    from maitred.routing.names import QueueId
    from maitred.worker.execution import Execution


class Origin:
    """One partition of one queue, as a worker knows it."""

    __slots__ = (
        "beating",
        "ends",
        "handler",
        "lease_seconds",
        "name",
        "partition",
        "queue",
        "running",
        "sending",
    )

    def __init__(self, queue: QueueId, partition: int, handler: str) -> None:
        self.queue = queue
        self.name = f"{queue.namespace}/{queue.queue}"
        self.partition = partition
        self.handler = handler
        """The name of the function that its tasks call, for logs."""
        self.lease_seconds = 10.0
        """As it was last told."""
        self.running: dict[tuple[int, int], Execution] = {}
        """By sequence number and attempt, the oldest first; those that are ours to finish."""
        self.ends: list[End] = []
        """What has not been sent yet."""
        self.sending: dict[int, list[End]] = {}
        """Messages with ends that the node has not answered yet, by a number of their own."""
        self.beating = False
