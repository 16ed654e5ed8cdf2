"""The workers that serve a queue, as its root knows them: they attend, busy or not.

Offers only show free workers, and a queue whose workers are all busy has none. So each worker tells
the root that it is there. When no worker was there for a while, queries are refused instead of
waiting.
"""

from __future__ import annotations

from collections import OrderedDict
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING

from maitred.errors import UnknownWorker
from maitred.matching.rosters import Rosters
from maitred.matching.shares import Shares

if TYPE_CHECKING:
    from maitred.matching.attendance import Attendance, Order
    from maitred.matching.task import Token

SUSPECT_SECONDS = 1.0
"""Least time between two challenges of a suspected worker: a gateway that repeats its suspicion
costs the worker one exchange a second."""

RETURN_SECONDS = 2.0
"""How long a worker that was answered, or whose connection was lost, has to attend again."""

ORDER_AGAIN_SECONDS = 1.0
"""How long a worker that does not follow an order is left alone before it hears it again."""

PREFIX_LETTERS = 4
"""Least letters that name a worker by the start of its session in hexadecimal."""

ATTENDANCES_KEPT = 10_000
"""Most workers that are remembered, even if a client attends under a new session each time."""

GONE_KEPT = 2_000
"""Most sessions and names of workers that are gone, which are remembered to tell who is back."""


class Presence:
    """All workers that attend, and the rosters that gateways have of them."""

    def __init__(self, now: float, version: int, pass_seconds: float) -> None:
        self.workers: OrderedDict[bytes, Attendance] = OrderedDict()
        """By session, in the order in which they were last heard of."""
        self._serving: dict[bytes, None] = {}
        self.seen = now
        """When a worker was last heard of that does not attend now."""
        self.began = now
        self.version = version
        """Rises with every change of a roster; no two owners have the same versions."""
        self.changed = version
        """The version with which the serving workers, or their addresses, changed last."""
        self.news = False
        """Whether subscribed gateways may have to be told of a change."""
        self._gone: OrderedDict[bytes | str, float] = OrderedDict()
        """When workers that are gone were last heard of, by session and by name."""
        self.rosters = Rosters(pass_seconds)
        self.shares = Shares()

    @property
    def count(self) -> int:
        """The number of workers that serve."""
        return len(self._serving)

    def serving(self) -> list[Attendance]:
        """Return the workers that serve."""
        workers = self.workers
        return [workers[session] for session in self._serving]

    def attend(self, told: Attendance, now: float) -> tuple[Attendance, Token | None]:
        """Note that a worker attends; return its attendance, and the token of its earlier long
        poll, if that still waits."""
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
        """Return the order to answer the worker with at once, if any."""
        if one.token is None or not one.order or now < one.ordered_at + ORDER_AGAIN_SECONDS:
            return ""
        one.ordered_at = now
        return one.order

    def answered(self, one: Attendance, now: float) -> Token:
        """Note that its long poll is answered, or lost, and return the token: the worker has a
        moment to attend again."""
        token, one.token = one.token, None
        one.heard = now
        one.deadline = now + RETURN_SECONDS
        return token

    def gives_up(self, one: Attendance) -> None:
        """Forget a worker that has not attended again in time."""
        self._forget(one)
        self._gone[one.session] = self._gone[one.worker] = one.heard
        while len(self._gone) > GONE_KEPT:
            self._gone.popitem(last=False)

    def returns(self, one: Attendance, now: float) -> float | None:
        """Return for how many seconds a worker that attends for the first time was away: the same
        one, or one of the same name that was gone; None if none was."""
        by_session = self._gone.pop(one.session, None)
        by_name = self._gone.pop(one.worker, None)
        heard = by_name if by_session is None else by_session
        return None if heard is None else now - heard

    def noticed(self, now: float) -> None:
        """Note that a worker was heard of, which may be gone by now."""
        self.seen = now

    def spoke(self, session: bytes, now: float) -> None:
        """Note that a worker offered slots or reported running tasks: it is not suspected any
        more."""
        self.seen = now
        known = self.workers.get(session)
        if known is not None and known.suspected:
            known.suspected = False
            self._count(known, now)

    def suspect(self, session: bytes, now: float) -> None:
        """Send no queries to a worker that does not answer a gateway."""
        known = self.workers.get(session)
        if known is not None:
            known.suspected = True
            self._count(known, now)

    def find(self, named: str) -> list[Attendance]:
        """Return workers by name, or by the first letters of the session in hexadecimal; raises
        `UnknownWorker`."""
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
            else "No worker does.",
        )

    def order(self, one: Attendance, order: Order) -> None:
        """Note an operator's order for the worker."""
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

    def queries_changed(self) -> None:
        """Have all gateways told of the roster again: it carries settings of queries."""
        self._changes()

    def _changes(self) -> None:
        self.version += 1
        self.changed = self.version
        self.news = True
