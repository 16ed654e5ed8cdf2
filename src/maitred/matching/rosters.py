"""Gateways that pick workers themselves: their subscriptions to a queue, and their passes.

A pass is a secret that a gateway shows to one worker with every query. The root tells the worker of
it, for a short time only, and repeats that as long as the gateway subscribes. So the pass of a
gateway that is gone, or is no longer permitted, ends within `queries.pass_seconds`, whichever
messages are lost.

Values that an operator may want to change are in the queue's settings. The constants here follow
from those, or from how fast connections and processes are.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.matching.subscribers import IssuedPass, Subscriber, SubscriberKey

if TYPE_CHECKING:
    from maitred.matching.attendance import Attendance

RENEWALS = 3
"""How often a worker is told of a pass within its validity: two answers may be lost before it
ends."""

HOLDS = 2
"""How often a subscription is answered within that time, at least: each time the gateway's
permission is checked, and a long poll must not outlive its passes."""

TELL_AGAIN_SECONDS = 1.0
"""When a worker is told of a new pass for the second time: the first answer may be lost with its
connection, and the worker would refuse the gateway until the pass is renewed."""

GATHER_SECONDS = 0.05
"""Least time between two rosters for the same gateway: if a thousand workers come one by one, it
is told twenty times a second, not a thousand times."""

SETTLE_SECONDS = 2.0
"""How long a gateway keeps the roster of an earlier owner: a root that was just loaded knows no
workers, and all attend within a second. With the first new roster at once, the gateway would send
all queries to the first worker that attends."""


class Rosters:
    """The gateways that subscribe to a queue, and their passes."""

    def __init__(self, pass_seconds: float) -> None:
        self.pass_seconds = pass_seconds
        """How long a worker accepts a pass after it was told of it, and how long a gateway that
        does not subscribe any more is remembered."""
        self.renew_seconds = pass_seconds / RENEWALS
        """How long after it was told of a pass a worker is told again."""
        self.held_seconds = pass_seconds / HOLDS
        """How long a subscription waits at most."""
        self.subscribers: dict[SubscriberKey, Subscriber] = {}
        self.passes = 0
        self.untold: dict[Attendance, None] = {}
        """Workers that may have to be told of passes."""

    @property
    def held(self) -> list[Subscriber]:
        """The gateways whose long polls wait."""
        return [one for one in self.subscribers.values() if one.token is not None]

    def pass_for(
        self, subscriber: Subscriber, worker: Attendance, token: bytes, now: float
    ) -> None:
        """Issue a pass for the gateway at the worker."""
        made = IssuedPass(token, subscriber, now)
        subscriber.passes[worker.session] = made
        worker.passes[subscriber.key] = made
        self.passes += 1

    def forget(self, subscriber: Subscriber, workers: dict[bytes, Attendance]) -> None:
        """Forget a gateway that does not subscribe any more, and its passes."""
        if self.subscribers.get(subscriber.key) is not subscriber:
            return
        del self.subscribers[subscriber.key]
        self.passes -= len(subscriber.passes)
        for session in subscriber.passes:
            workers[session].passes.pop(subscriber.key, None)

    def worker_left(self, worker: Attendance) -> None:
        """Forget the passes for a worker that is gone."""
        self.untold.pop(worker, None)
        self.passes -= len(worker.passes)
        for one in worker.passes.values():
            one.subscriber.passes.pop(worker.session, None)

    def to_tell(self, worker: Attendance, now: float) -> list[IssuedPass]:
        """Return the passes to tell a worker of, if one is due now; then also those due soon."""
        if not worker.serves or not any(
            one.tell_at <= now and one.subscriber.is_here(now) for one in worker.passes.values()
        ):
            return []
        return self.told(worker, now)

    def told(self, worker: Attendance, now: float) -> list[IssuedPass]:
        """Return the passes that an answer to the worker carries in any case: those due soon."""
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
        """Return when the worker has to be told of a pass the next time."""
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
