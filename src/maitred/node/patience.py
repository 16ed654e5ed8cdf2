"""The time limits of a connection, in one table.

A peer that trickles a byte a second, that never reads, or that sends nothing costs memory and a
descriptor. A connection waits for exactly one thing at a time, and each has a limit and an error:
the table is complete, so no connection is exempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import IdleTooLong, InternalError, MaitredError, TooSlow
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.settings import Limits

LINGER_SECONDS: Final = 2.0
"""How long a peer has to read the last frame and close; then the shard closes the connection."""

ANSWER_SECONDS: Final = TIMEOUT_MAX_MILLISECONDS / 1000 + 60.0
"""No request may take longer than its deadline, so the shard has lost a request that is unanswered
by then on a silent connection."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of a connection at one moment; times are the loop's."""

    opened_at: float
    ready: bool
    arrived_at: float
    partial_since: float | None
    stalled_since: float | None
    closing_since: float | None
    busy: bool


class Farewell(NamedTuple):
    """Why a connection is closed, and whether its peer may still read the reason."""

    problem: MaitredError
    heard: bool


class Awaits(Enum):
    """What a connection waits for."""

    CLOSE = auto()
    """The shard has sent its last frame, and the peer has to close."""
    HANDSHAKE = auto()
    """The peer has to finish the handshake."""
    PEER = auto()
    """The peer has to read."""
    FRAME = auto()
    """The peer has to send the rest of a frame."""
    ANSWER = auto()
    """The shard has to answer a request."""
    REQUEST = auto()
    """The peer may send a request."""


def awaited(seen: Observed) -> tuple[Awaits, float]:
    """Return what the connection waits for, and since when."""
    if seen.closing_since is not None:
        return Awaits.CLOSE, seen.closing_since
    if not seen.ready:
        return Awaits.HANDSHAKE, seen.opened_at
    if seen.stalled_since is not None:
        return Awaits.PEER, seen.stalled_since
    if seen.partial_since is not None:
        return Awaits.FRAME, seen.partial_since
    return (Awaits.ANSWER if seen.busy else Awaits.REQUEST), seen.arrived_at


LIMITS: Final[dict[Awaits, Callable[[Limits], float]]] = {
    Awaits.CLOSE: lambda _: LINGER_SECONDS,
    Awaits.PEER: lambda limits: limits.frame_seconds,
    Awaits.HANDSHAKE: lambda limits: limits.handshake_seconds,
    Awaits.FRAME: lambda limits: limits.frame_seconds,
    Awaits.ANSWER: lambda _: ANSWER_SECONDS,
    Awaits.REQUEST: lambda limits: limits.idle_seconds,
}
"""The longest wait of each kind, in seconds."""


def lost_patience(seen: Observed, limits: Limits, now: float) -> Farewell | None:
    """Return why the connection has to be closed; None if it may stay."""
    awaits, since = awaited(seen)
    seconds = LIMITS[awaits](limits)
    if now - since < seconds:
        return None
    return _farewell(awaits, seconds)


def _farewell(awaits: Awaits, seconds: float) -> Farewell:
    if awaits is Awaits.CLOSE:
        return Farewell(TooSlow("The peer did not close."), heard=False)
    if awaits is Awaits.PEER:
        return Farewell(TooSlow(f"The peer has read nothing for {seconds:g} s."), heard=False)
    if awaits is Awaits.HANDSHAKE:
        return Farewell(TooSlow(f"The handshake took longer than {seconds:g} s."), heard=True)
    if awaits is Awaits.FRAME:
        return Farewell(TooSlow(f"A frame took longer than {seconds:g} s to arrive."), heard=True)
    if awaits is Awaits.ANSWER:
        return Farewell(
            InternalError("The node has lost a request of this connection."), heard=True
        )
    return Farewell(
        IdleTooLong(
            f"Nothing arrived for {seconds:g} s.",
            remedy="Send OPTIONS now and then to keep a connection open.",
        ),
        heard=True,
    )
