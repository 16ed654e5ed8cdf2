"""The limits of a user's queries, at one shard.

Each shard counts rates for itself: a user's rate is what one shard lets through. A queue with one
partition has one shard, so for most queues it is the whole rate. What is under way is counted for
the whole node: see `shard_permits.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import Overloaded
from maitred.matching.limits import Limiter
from maitred.settings import QueryLimits as UserLimits

if TYPE_CHECKING:
    from maitred.security.directory import Directory
    from maitred.settings import QuerySettings

LIMITERS_KEPT: Final = 10_000
"""Users and queues whose rate is remembered; the least recently used is forgotten first."""

NO_LIMITS: Final = UserLimits()

QUEUE: Final = "/"
"""Prefix of a queue's name among the names of users."""

Reach = tuple[float, float, int, int]
"""How long a reservation lasts and a query runs, how large a result and a stream may be."""


class Limit(NamedTuple):
    """A limit of the queries in flight."""

    name: str
    """The name that is counted: a user, or a queue after a slash."""
    who: str
    """The same, for sentences."""
    most: int


class UserQueryLimits:
    """Applies the limits of all users to the queries that they ask at this shard."""

    def __init__(self, users: Directory) -> None:
        self._users = users
        self._limiters: OrderedDict[str, Limiter] = OrderedDict()
        self._reach: dict[tuple[int, str], tuple[QuerySettings, Reach]] = {}
        """By the identity of a queue's settings and the user. The settings are kept, too: others
        that are set live could have the same identity otherwise."""
        self._generation = 0

    def user(self, name: str) -> UserLimits:
        """Return the limits that are set for a user; none for a caller without a name."""
        return self._users.query_limits(name) or NO_LIMITS

    def of(self, queue: QuerySettings, user: str) -> Reach:
        """Return the lower of the queue's and the user's limits, for the worker."""
        if self._generation != self._users.generation:
            self._generation = self._users.generation
            self._reach = {}
        known = self._reach.get((id(queue), user))
        if known is None:
            if len(self._reach) >= LIMITERS_KEPT:
                self._reach = {}
            known = queue, self._worked_out(queue, self.user(user))
            self._reach[id(queue), user] = known
        return known[1]

    def _worked_out(self, queue: QuerySettings, theirs: UserLimits) -> Reach:
        most = theirs.result_bytes
        streams = [size for size in (queue.stream_bytes, most) if size]
        return (
            queue.reservation_seconds,
            min(queue.run_seconds, theirs.run_seconds or queue.run_seconds),
            min(queue.result_bytes, most or queue.result_bytes),
            min(streams, default=0),
        )

    def again_seconds(self, queue: QuerySettings, user: str) -> float:
        """Return how long a gateway may reuse a slot without a slot request: 0 if queries are
        counted here, and for policies with which the gateway selects the worker itself.
        """
        if queue.policy != "idle" or queue.rate_per_second is not None:
            return 0.0
        return 0.0 if self.asks_always(queue, user) else queue.again_seconds

    def asks_always(self, queue: QuerySettings, user: str) -> bool:
        """Whether each query of the user has to be counted at the node, so that the gateway may
        neither reuse slots nor select workers itself."""
        if queue.concurrent is not None:
            return True
        theirs = self.user(user) if user else NO_LIMITS
        return theirs.rate_per_second is not None or theirs.concurrent is not None

    def under_way(self, queue: QuerySettings, name: str, user: str) -> tuple[Limit, ...]:
        """Return the limits of the queries in flight of the user and the queue; mostly none."""
        theirs = self.user(user).concurrent if user else None
        if theirs is None and queue.concurrent is None:
            return ()
        found = []
        if theirs is not None:
            found.append(Limit(user, f"The user {user!r}", theirs))
        if queue.concurrent is not None:
            found.append(Limit(QUEUE + name, f"The queue {name}", queue.concurrent))
        return tuple(found)

    def check_queue(self, namespace: str, queue: str, user: str) -> None:
        """Raise `PermissionDenied` unless the user may query this queue."""
        self.user(user).check_queue(user, namespace, queue)

    def count(self, user: str, queries: int, now: float) -> None:
        """Count so many queries of the user; raise `Overloaded` above the rate limit."""
        self._count(user, user, self.user(user).rate_per_second, queries, now)

    def count_queue(self, queue: QuerySettings, name: str, queries: int, now: float) -> None:
        """Count so many queries of the queue; raise `Overloaded` above the rate limit."""
        if queue.rate_per_second is not None:
            self._count(QUEUE + name, f"The queue {name}", queue.rate_per_second, queries, now)

    def give_back_to_queue(self, name: str, queries: int) -> None:
        """Uncount queries of the queue, as `give_back` does for a user."""
        self.give_back(QUEUE + name, queries)

    def _count(self, key: str, who: str, rate: float | None, queries: int, now: float) -> None:
        if rate is None:
            return
        limiter = self._limiters.get(key)
        if limiter is None or limiter.rate != rate:
            limiter = self._limiters[key] = Limiter(rate, rate, now)
            if len(self._limiters) > LIMITERS_KEPT:
                self._limiters.popitem(last=False)
        self._limiters.move_to_end(key)
        at = limiter.next_at(now)
        if at > now:
            raise Overloaded(
                f"{who} has more than {rate:g} queries a second.",
                remedy="Ask more slowly.",
                retry_after=round(max(at - now, 0.001), 3),
            )
        for _ in range(queries):
            limiter.count()

    def give_back(self, user: str, queries: int) -> None:
        """Uncount queries of the user that got no slot: the gateway asks again for them."""
        limiter = self._limiters.get(user)
        if limiter is not None:
            for _ in range(queries):
                limiter.give_back()
