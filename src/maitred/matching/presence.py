"""Who serves a queue, as its root knows: the workers that attend, busy or not.

Offers say who is free; a queue whose workers are all busy has none, and is served all the same. So
each worker tells the root that it is there. When nobody was for a while, queries are refused
instead of waiting for nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from maitred.errors import UnknownWorker
from maitred.matching.rosters import Rosters
from maitred.matching.shares import Shares

if TYPE_CHECKING:
    from maitred.matching.rosters import IssuedPass, SubscriberKey
    from maitred.matching.task import Token

Order = Literal["", "offline", "online"]
State = Literal["online", "draining", "offline"]

SUSPECT_SECONDS = 1.0
"""Least time between two challenges of a suspected worker: a gateway that repeats its suspicion
costs the worker one exchange a second."""

RETURN_SECONDS = 2.0
"""How long a worker that was answered, or whose connection was lost, has to attend again."""

ORDER_AGAIN_SECONDS = 1.0
"""Before a worker that does not follow an order hears it again."""

PREFIX_LETTERS = 4
"""Of a session in hexadecimal, at least: fewer are a name."""

ATTENDANCES_KEPT = 10_000
"""No more workers are remembered than this, whoever says to be another one each time."""


class Attendance(Struct, eq=False):
    """One worker."""

    session: bytes
    worker: str
    address: str
    slots: int
    busy: int
    state: State
    heard: float
    token: Token = None
    """Of its request, while it is held."""
    deadline: float = inf
    """When it is answered or, if it was, given up."""
    order: Order = ""
    """What a person wants of it, and it has not done."""
    ordered_at: float = -inf
    suspected: bool = False
    passes: dict[SubscriberKey, IssuedPass] = field(default_factory=dict)
    """Of the gateways that may come without a reservation."""
    tell_at: float = inf
    """When its timer rings that is about them."""
    good: float = 1.0
    """The share of its answers that went well."""
    told_best: float = 0.0
    """The best share of the others, as it knows."""
    limit: int | None = None
    """How many it takes at a time, by its own word."""
    limit_reason: str = ""
    blocked: int = 0
    """How often its event loop was blocked."""

    @property
    def serves(self) -> bool:
        """Whether queries may hope for it."""
        return self.state == "online" and not self.suspected


class Presence:
    """All of them."""

    def __init__(self, now: float, version: int, pass_seconds: float) -> None:
        self.workers: OrderedDict[bytes, Attendance] = OrderedDict()
        """By session; the one that was heard of last, last."""
        self._serving: dict[bytes, None] = {}
        self.seen = now
        """When a worker was last heard of that is no longer here."""
        self.began = now
        self.version = version
        """Counts up with everything that makes a roster another one; no two owners have the same
        versions."""
        self.changed = version
        """The version since which those who serve, and how they are reached, are the same."""
        self.news = False
        """Whether somebody may have to hear of it."""
        self.rosters = Rosters(pass_seconds)
        self.shares = Shares()

    @property
    def anybody(self) -> bool:
        """Whether any worker is here to serve."""
        return bool(self._serving)

    @property
    def count(self) -> int:
        """Those who may be asked."""
        return len(self._serving)

    def serving(self) -> list[Attendance]:
        """Those who may be asked."""
        workers = self.workers
        return [workers[session] for session in self._serving]

    def attend(self, told: Attendance, now: float) -> tuple[Attendance, Token | None]:
        """A worker is there; what is kept of it, and its earlier request, if one is held still."""
        known = self.workers.get(told.session)
        earlier = None
        if known is None:
            self.workers[told.session] = known = told
            if len(self.workers) > ATTENDANCES_KEPT:
                self._forget(next(iter(self.workers.values())))
        else:
            self.workers.move_to_end(told.session)
            earlier, known.token = known.token, told.token
            if known.serves and (known.worker, known.address, known.slots) != (
                told.worker,
                told.address,
                told.slots,
            ):
                self._changes()
            known.worker, known.address = told.worker, told.address
            known.slots, known.busy, known.state = told.slots, told.busy, told.state
            known.deadline, known.good = told.deadline, told.good
            known.limit, known.limit_reason = told.limit, told.limit_reason
            known.blocked = told.blocked
            known.suspected = False
        known.heard = now
        if known.order == ("online" if known.state == "online" else "offline"):
            known.order = ""
        self._count(known, now)
        return known, earlier

    def order_now(self, one: Attendance, now: float) -> Order:
        """What to answer it with at once, if anything."""
        if one.token is None or not one.order or now < one.ordered_at + ORDER_AGAIN_SECONDS:
            return ""
        one.ordered_at = now
        return one.order

    def answered(self, one: Attendance, now: float) -> Token:
        """Its request is answered, or lost: it has a moment to come again."""
        token, one.token = one.token, None
        one.heard = now
        one.deadline = now + RETURN_SECONDS
        return token

    def gives_up(self, one: Attendance) -> None:
        """It has not come again."""
        if self.workers.get(one.session) is one:
            self._forget(one)

    def noticed(self, now: float) -> None:
        """A worker that may be gone by now was heard of."""
        self.seen = now

    def spoke(self, session: bytes, now: float) -> None:
        """It offered something, or its tasks run: whatever hung does no longer."""
        self.seen = now
        known = self.workers.get(session)
        if known is not None and known.suspected:
            known.suspected = False
            self._count(known, now)

    def suspect(self, session: bytes, now: float) -> None:
        """It does not answer a gateway."""
        known = self.workers.get(session)
        if known is not None:
            known.suspected = True
            self._count(known, now)

    def find(self, named: str) -> list[Attendance]:
        """By name, or by the first letters of the session in hexadecimal."""
        workers = list(self.workers.values())
        found = [one for one in workers if one.worker == named]
        if not found and len(named) >= PREFIX_LETTERS:
            found = [one for one in workers if one.session.hex().startswith(named.lower())]
        if found:
            return found
        names = sorted({one.worker for one in workers})
        near = get_close_matches(named, names, n=3)
        raise UnknownWorker(
            f"No worker called {named!r} serves this queue.",
            remedy=f"Did you mean {' or '.join(map(repr, near))}?"
            if near
            else f"These do: {', '.join(names[:10])}."
            if names
            else "Nobody does.",
        )

    def order(self, one: Attendance, order: Order) -> None:
        """A person wants this of it."""
        as_it_is = "online" if one.state == "online" else "offline"
        one.order = "" if order == as_it_is else order
        one.ordered_at = -inf

    def _count(self, one: Attendance, now: float) -> None:
        if one.serves:
            self.shares.told(one)
            if one.session not in self._serving:
                self._serving[one.session] = None
                self._changes()
        elif one.session in self._serving:
            del self._serving[one.session]
            self.shares.left(one.session)
            self._changes()
            self.seen = max(self.seen, now)

    def _forget(self, one: Attendance) -> None:
        del self.workers[one.session]
        self.rosters.worker_left(one)
        self.shares.left(one.session)
        if self._serving.pop(one.session, one) is None:
            self._changes()
            self.seen = max(self.seen, one.heard)

    def _changes(self) -> None:
        self.version += 1
        self.changed = self.version
        self.news = True
