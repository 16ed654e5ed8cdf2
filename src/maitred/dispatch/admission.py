"""Limits of users and queues at a gateway: queries per second, under way and queued.

The node applies the limits as well: queries under way and queued over all gateways and clients,
rates at each shard. A refusal at the gateway comes earlier, and costs the node nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.settings import QueryLimits, QuerySettings

CONCURRENT_RETRY_SECONDS: Final = 0.5
"""Seconds after which to try again if too many queries are under way: when one of them ends is not
known."""

USERS_MAX: Final = 10_000
"""Users that are remembered; at this number, those without queries under way are dropped."""


class _Usage:
    """Counts of one user, or of one queue."""

    __slots__ = ("at", "tokens", "under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = 0
        self.waiting: dict[tuple[str, str], int] = {}
        """Queries without a worker, by namespace and queue."""
        self.tokens = -1.0
        """Queries that the rate allows now; negative before the first query."""
        self.at = 0.0


class Admission:
    """Admits queries, and counts them until they are over."""

    def __init__(
        self,
        limits_of: Callable[[str], QueryLimits | None],
        queues: Callable[[str, str], QuerySettings | None] = lambda _, __: None,
    ) -> None:
        self._limits_of = limits_of
        self._queue_limits_of = queues
        self._usage: dict[str, _Usage] = {}
        self._queues: dict[tuple[str, str], _Usage] = {}
        """The counts of queues with limits."""

    def enter(self, user: str, namespace: str, queue: str, now: float) -> None:
        """Count a new query, or raise `PermissionDenied` or `Overloaded`."""
        limits = self._limits_of(user)
        usage = self._usage.get(user)
        if usage is None:
            if len(self._usage) >= USERS_MAX:
                self._forget()
            usage = self._usage[user] = _Usage()
        key = (namespace, queue)
        waiting = usage.waiting.get(key, 0)
        if limits is not None:
            limits.check_queue(user, namespace, queue)
            _check_concurrent(f"The user {user!r}", limits.concurrent, usage)
            if limits.waiting is not None and waiting >= limits.waiting:
                raise Overloaded(
                    f"The user {user!r} has {waiting:,} queries waiting in {queue!r}, as many as "
                    "allowed.",
                    retry_after=CONCURRENT_RETRY_SECONDS,
                )
        of_queue = self._queue_limits_of(namespace, queue)
        if of_queue is not None:
            self._enter_queue(key, of_queue, now)
        if limits is not None:
            try:
                _take_token(f"The user {user!r}", limits.rate_per_second, usage, now)
            except Overloaded:
                self._leave_queue(key)
                raise
        usage.under_way += 1
        usage.waiting[key] = waiting + 1

    def sent(self, user: str, namespace: str, queue: str) -> None:
        """Count a query that got a worker."""
        usage = self._usage.get(user)
        if usage is not None:
            _less(usage, (namespace, queue))

    def waits_again(self, user: str, namespace: str, queue: str) -> None:
        """Count a query that waits again."""
        usage = self._usage.get(user)
        if usage is not None:
            key = (namespace, queue)
            usage.waiting[key] = usage.waiting.get(key, 0) + 1

    def leave(self, user: str, namespace: str, queue: str, *, waited: bool) -> None:
        """Count a query that is over; `waited` tells whether it had no worker."""
        usage = self._usage.get(user)
        if usage is None:
            return
        usage.under_way -= 1
        if self._queues:
            self._leave_queue((namespace, queue))
        if waited:
            _less(usage, (namespace, queue))

    def under_way(self, user: str) -> int:
        """Return the number of the user's queries under way."""
        usage = self._usage.get(user)
        return usage.under_way if usage is not None else 0

    def _enter_queue(self, key: tuple[str, str], limits: QuerySettings, now: float) -> None:
        if limits.concurrent is None and limits.rate_per_second is None:
            return
        usage = self._queues.get(key)
        if usage is None:
            usage = self._queues[key] = _Usage()
        name = f"The queue {key[0]}/{key[1]}"
        _check_concurrent(name, limits.concurrent, usage)
        _take_token(name, limits.rate_per_second, usage, now)
        usage.under_way += 1

    def _leave_queue(self, key: tuple[str, str]) -> None:
        usage = self._queues.get(key)
        if usage is not None:
            usage.under_way = max(0, usage.under_way - 1)

    def _forget(self) -> None:
        for user in [user for user, usage in self._usage.items() if not usage.under_way]:
            del self._usage[user]


def _check_concurrent(name: str, most: int | None, usage: _Usage) -> None:
    if most is not None and usage.under_way >= most:
        raise Overloaded(
            f"{name} has {usage.under_way:,} queries under way, as many as allowed.",
            retry_after=CONCURRENT_RETRY_SECONDS,
        )


def _take_token(name: str, rate: float | None, usage: _Usage, now: float) -> None:
    if rate is None:
        return
    most = max(1.0, rate)
    grown = usage.tokens + max(0.0, now - usage.at) * rate
    tokens = most if usage.tokens < 0 else min(most, grown)
    usage.at = now
    if tokens < 1:
        usage.tokens = tokens
        raise Overloaded(
            f"{name} has more than {rate:g} queries a second.",
            retry_after=(1 - tokens) / rate,
        )
    usage.tokens = tokens - 1


def _less(usage: _Usage, key: tuple[str, str]) -> None:
    left = usage.waiting.get(key, 0) - 1
    if left > 0:
        usage.waiting[key] = left
    else:
        usage.waiting.pop(key, None)
