"""What a worker has counted."""

from __future__ import annotations

from msgspec import Struct


class WorkerStatistics(Struct):
    """Counted as it happens; logged at the end."""

    slots: int
    busy: int = 0
    """Slots that are taken now, reserved ones too."""
    begun: int = 0
    done: int = 0
    failed: int = 0
    """Attempts whose handler raised, or whose arguments or result did not fit."""
    timed_out: int = 0
    stopped: int = 0
    """Attempts that ended because somebody cancelled their task."""
    returned: int = 0
    """Tasks that were given to us and not begun."""
    lapsed: int = 0
    """Of these, those whose lease may have ended before their handler could begin: the event loop
    was blocked, or no thread was free."""
    lost: int = 0
    """Attempts that the node gave to somebody else meanwhile."""
    late: int = 0
    """Ends that the node no longer waited for."""
    unreported: int = 0
    """Ends that the node refused to hear."""
    queries: int = 0
    """Queries that were begun; how they ended is counted with the tasks."""
    relayed: int = 0
    """Of these, those that came by the node."""
    refused: int = 0
    """Queries whose reservation was not good."""
    full: int = 0
    """Queries with a pass that there was no room for."""
    unused: int = 0
    """Reservations that no query came for."""
    held_back: int = 0
    """How often it began to keep slots of a queue back, since it failed more than others."""
    tls_failures: int = 0
    """Connections of gateways that were dropped because their TLS handshake failed."""
    blocked: int = 0
    """How often the event loop was blocked for `blocked_seconds` or longer."""
    blocked_seconds: float = 0.0
    """For how long, all in all."""
    starved_seconds: float = 0.0
    """For how long the event loop had something to do while other processes had the CPUs."""
    offers: int = 0
    """Messages with free slots."""
