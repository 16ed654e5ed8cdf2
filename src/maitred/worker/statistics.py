"""The counters of a worker."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict


class WorkerStatistics(Struct):
    """Counts since the start of the worker; the line "worker has stopped" has all of them."""

    slots: int
    busy: int = 0
    """Slots that are busy now, reserved ones included."""
    begun: int = 0
    done: int = 0
    failed: int = 0
    """Attempts and queries whose handler raised, or whose arguments or result did not fit."""
    timed_out: int = 0
    stopped: int = 0
    """Attempts and queries that were cancelled."""
    returned: int = 0
    """Tasks that were returned to the node without being begun."""
    lapsed: int = 0
    """Returned tasks whose lease may have ended before their handler could begin: the event loop
    was blocked, or no thread was free."""
    lost: int = 0
    """Attempts that were stopped because the node gave their task to another worker."""
    late: int = 0
    """Ends that came after the node had given the task up."""
    unreported: int = 0
    """Ends that the node refused."""
    queries: int = 0
    """Queries that were begun; their ends are counted together with those of tasks."""
    relayed: int = 0
    """Queries that the node relayed."""
    refused: int = 0
    """Queries that were refused because their reservation or pass was not valid."""
    full: int = 0
    """Queries with a pass that were refused for lack of room."""
    unused: int = 0
    """Reservations that expired without a query."""
    held_back: int = 0
    """How often the worker began to offer few slots of a queue, because it failed more of its
    queries than other workers."""
    tls_failures: int = 0
    """Connections of gateways that were dropped because their TLS handshake failed."""
    blocked: int = 0
    """How often the event loop was blocked for `blocked_seconds` or longer."""
    blocked_seconds: float = 0.0
    """Sum of the seconds for which the event loop was blocked."""
    starved_seconds: float = 0.0
    """Seconds for which the event loop was ready to run while other processes had the CPUs."""
    offers: int = 0
    """Offers that were sent."""

    def rounded(self) -> dict[str, Any]:
        """Return all counters by name, with seconds rounded to milliseconds."""
        return {name: round(value, 3) for name, value in asdict(self).items()}
