"""How long a connection may take for what, decided in one place.

A peer that trickles a byte a second, that never reads, or that says nothing at all costs memory and
a descriptor. Each of these has a limit with a name, and a sentence for whoever reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import IdleTooLong, MaitredError, TooSlow

if TYPE_CHECKING:
    from maitred.settings import Limits

LINGER_SECONDS: Final = 2.0
"""After our last words a peer has so long to read them and close; then we do."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of a connection at one moment; times are the loop's."""

    opened_at: float
    ready: bool
    arrived_at: float
    partial_since: float | None
    stalled_since: float | None
    closing_since: float | None
    busy: bool


class Farewell(NamedTuple):
    """Why a connection has to go, and whether its peer would still hear it."""

    problem: MaitredError
    heard: bool


def lost_patience(seen: Observed, limits: Limits, now: float) -> Farewell | None:
    """Why the connection has to go; None if it may stay."""
    if seen.closing_since is not None:
        if now - seen.closing_since >= LINGER_SECONDS:
            return Farewell(TooSlow("The peer did not close."), heard=False)
        return None
    if seen.stalled_since is not None and now - seen.stalled_since >= limits.frame_seconds:
        return Farewell(
            TooSlow(f"The peer has read nothing for {limits.frame_seconds:g} s."), heard=False
        )
    if not seen.ready:
        if now - seen.opened_at >= limits.handshake_seconds:
            return Farewell(
                TooSlow(f"The handshake took longer than {limits.handshake_seconds:g} s."),
                heard=True,
            )
        return None
    if seen.partial_since is not None and now - seen.partial_since >= limits.frame_seconds:
        return Farewell(
            TooSlow(f"A frame took longer than {limits.frame_seconds:g} s to arrive."), heard=True
        )
    if not seen.busy and now - seen.arrived_at >= limits.idle_seconds:
        return Farewell(
            IdleTooLong(
                f"Nothing arrived for {limits.idle_seconds:g} s.",
                remedy="Send OPTIONS now and then to keep a connection open.",
            ),
            heard=True,
        )
    return None
