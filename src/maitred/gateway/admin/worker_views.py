"""Shows the workers that serve queues, and what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.gateway.admin.answers import ListedWorker

if TYPE_CHECKING:
    from maitred.protocol.queries import WorkerRow


def worker_of(row: WorkerRow, queues: list[str]) -> ListedWorker:
    """Return a worker as callers see it, with the queues (`namespace/queue`) that they may see."""
    return ListedWorker(
        worker=row.worker,
        session=row.session.hex(),
        address=row.address,
        queues=queues,
        slots=row.slots,
        busy=row.busy,
        limit=row.limit,
        limit_reason=row.limit_reason,
        state=row.state,
        online=row.state == "online",
        heard_seconds=row.heard_seconds,
        suspected=row.suspected,
        good=row.good,
        blocked=row.blocked,
    )
