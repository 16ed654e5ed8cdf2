"""Gateways that pick workers themselves: who subscribes to a queue, and the passes that they got.

A pass is a secret that a gateway shows to one worker with every query; the worker was told of it,
and only for a short time, again and again as long as the gateway subscribes. So whoever is gone, or
may not ask any more, is let in nowhere a minute later (`queries.pass_seconds`), whatever got lost.

What an operator may want to change is in the queue's settings. The numbers here follow from that,
or from how fast connections and processes are; another value would only make them worse.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from maitred.matching.presence import Attendance
    from maitred.matching.task import Token

RENEWALS = 3
"""How often a worker is told of a pass in the time for which it is good: two answers may be lost
before it ends."""

HOLDS = 2
"""How often a subscription is answered in that time, at least: whether somebody may still query is
looked at each time, and one that is held for long must not outlive its passes."""

TELL_AGAIN_SECONDS = 1.0
"""A new pass is told twice: the first answer may be lost with its connection, and then a gateway
would be turned away until the pass is renewed."""

AWAY_SECONDS = 2.0
"""How long a gateway that was answered has to subscribe again before its passes are not renewed.
It does so at once; a lost connection is back within this time."""

GATHER_SECONDS = 0.05
"""Between two rosters for the same gateway: a thousand workers that come one by one are told of
twenty times a second, not a thousand times."""

SETTLE_SECONDS = 2.0
"""A root that was just loaded knows none of the workers that are there; they come within a second.
So long a gateway that has a roster keeps it, or it would send all its queries to the first one."""

SubscriberKey = tuple[bytes, str]
"""Session and user: nobody gets a pass that was made out for another by naming his session."""


class IssuedPass(Struct, eq=False):
    """What one gateway shows to one worker."""

    token: bytes
    subscriber: Subscriber
    tell_at: float
    """When the worker is to be told of it, the next time."""
    told_at: float = -inf
    """When it was told last."""


class Subscriber(Struct, eq=False):
    """A gateway that subscribes, for itself or for one of its users."""

    session: bytes
    user: str
    version: int
    """Of the roster that it has."""
    since: int
    """The version of its first roster: older ones had passes that nobody knows any more."""
    token: Token = None
    """Of its request, while it is held."""
    deadline: float = inf
    """When it is answered or, if it was, forgotten."""
    timer_at: float = inf
    """When its timer rings, perhaps too early."""
    not_before: float = -inf
    """It is not answered earlier, unless its time is up."""
    seen: float = -inf
    """When it last had a request here."""
    passes: dict[bytes, IssuedPass] = field(default_factory=dict)
    """By the worker's session."""

    @property
    def key(self) -> SubscriberKey:
        """What it is known by."""
        return self.session, self.user

    def is_here(self, now: float) -> bool:
        """Whether it subscribes, or will in a moment."""
        return self.token is not None or now < self.seen + AWAY_SECONDS


class Rosters:
    """All that subscribe, and their passes."""

    def __init__(self, pass_seconds: float) -> None:
        self.pass_seconds = pass_seconds
        """A worker lets a pass in for so long after it was told of it, and a gateway that does not
        subscribe any more is remembered for so long."""
        self.renew_seconds = pass_seconds / RENEWALS
        """A worker is told of a pass again after this."""
        self.held_seconds = pass_seconds / HOLDS
        """Longest that a subscription is held."""
        self.subscribers: dict[SubscriberKey, Subscriber] = {}
        self.passes = 0
        self.untold: dict[Attendance, None] = {}
        """Workers that may have something to hear."""

    @property
    def held(self) -> list[Subscriber]:
        """Those who wait for news."""
        return [one for one in self.subscribers.values() if one.token is not None]

    def pass_for(
        self, subscriber: Subscriber, worker: Attendance, token: bytes, now: float
    ) -> None:
        """Make one out."""
        made = IssuedPass(token, subscriber, now)
        subscriber.passes[worker.session] = made
        worker.passes[subscriber.key] = made
        self.passes += 1

    def forget(self, subscriber: Subscriber, workers: dict[bytes, Attendance]) -> None:
        """It does not subscribe any more."""
        if self.subscribers.get(subscriber.key) is not subscriber:
            return
        del self.subscribers[subscriber.key]
        self.passes -= len(subscriber.passes)
        for session in subscriber.passes:
            workers[session].passes.pop(subscriber.key, None)

    def worker_left(self, worker: Attendance) -> None:
        """Nobody can show anything to it any more."""
        self.untold.pop(worker, None)
        self.passes -= len(worker.passes)
        for one in worker.passes.values():
            one.subscriber.passes.pop(worker.session, None)

    def to_tell(self, worker: Attendance, now: float) -> list[IssuedPass]:
        """What to answer it with, if anything has to be said now; then also what is due soon."""
        if not worker.serves or not any(
            one.tell_at <= now and one.subscriber.is_here(now) for one in worker.passes.values()
        ):
            return []
        return self.told(worker, now)

    def told(self, worker: Attendance, now: float) -> list[IssuedPass]:
        """It is answered, whatever for: what it hears besides."""
        if not worker.serves or not worker.passes:
            return []
        soon = now + self.renew_seconds / 2
        found = [
            one
            for one in worker.passes.values()
            if one.tell_at <= soon and one.subscriber.is_here(now)
        ]
        for one in found:
            known = one.told_at > -inf
            one.tell_at = now + (self.renew_seconds if known else TELL_AGAIN_SECONDS)
            one.told_at = now
        return found

    def next_for(self, worker: Attendance, now: float) -> float:
        """When there is something to tell it that is not due yet."""
        if not worker.serves:
            return inf
        return min(
            (
                one.tell_at
                for one in worker.passes.values()
                if one.tell_at > now and one.subscriber.is_here(now)
            ),
            default=inf,
        )
