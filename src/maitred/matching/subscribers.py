"""A gateway that subscribes to a queue, and the passes that the root issued to it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from maitred.matching.task import Token

AWAY_SECONDS = 2.0
"""How long a gateway that was answered has to subscribe again before its passes are not renewed.
It does so at once; a lost connection is back within this time."""

SubscriberKey = tuple[bytes, str]
"""Session and user: naming another gateway's session does not give a user that gateway's passes."""


class IssuedPass(Struct, eq=False):
    """A pass, which one gateway shows to one worker."""

    token: bytes
    subscriber: Subscriber
    tell_at: float
    """When the worker is told of it the next time."""
    told_at: float = -inf
    """When the worker was told last."""


class Subscriber(Struct, eq=False):
    """A gateway that subscribes, for itself or for one of its users."""

    session: bytes
    user: str
    version: int
    """The version of the roster that it has."""
    since: int
    """The version of its first roster: the passes of older rosters are forgotten."""
    token: Token = None
    """The token of its long poll, while that waits."""
    deadline: float = inf
    """When its long poll is answered or, if none waits, when the gateway is forgotten."""
    timer_at: float = inf
    """When its timer rings, perhaps too early."""
    not_before: float = -inf
    """Its long poll is not answered earlier, unless the deadline passes."""
    seen: float = -inf
    """When it last subscribed."""
    passes: dict[bytes, IssuedPass] = field(default_factory=dict)
    """Its passes, by the worker's session."""

    @property
    def key(self) -> SubscriberKey:
        """The session and the user, which name it."""
        return self.session, self.user

    def is_here(self, now: float) -> bool:
        """Return whether it subscribes, or may do so again within `AWAY_SECONDS`."""
        return self.token is not None or now < self.seen + AWAY_SECONDS
