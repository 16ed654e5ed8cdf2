"""The queue of a gateway for queries without a free worker: short, then load shedding.

A queue bounded only by deadlines harms every caller under overload: each query waits until it is
nearly too late, and many answers come after their callers left. So a query is admitted only if it
would wait no longer than a target, at the rate at which the workers free slots; otherwise it is
refused at once, with the time after which a retry makes sense.

Priorities (0 is the highest) share one queue, higher ones first. Each level below the highest may
only use a smaller part of the target, so the lowest are refused first and the highest find a short
queue.

The gateway checks a query's deadline when its turn comes, and does not send a query that is too
late. A queued query whose deadline would pass before its turn is refused as soon as that is known:
the rate may fall, and after a quiet time it is unknown, so that a named number of queries is
admitted. A refusal tells the caller more than the end of its time, and sooner.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from maitred.balancing.checks import is_number, is_whole
from maitred.balancing.settings import InvalidSelectorSetting

Item = TypeVar("Item")


class Shed(Enum):
    """Why a query was not admitted."""

    LINE_FULL = "line-full"
    """The query would wait longer than the target: the workers are overloaded, retry later."""
    DO_NOT_QUEUE = "do-not-queue"
    """No worker had room at once, and the caller asked not to be queued."""
    TOO_LATE = "too-late"
    """The query's deadline passed, or would pass before its turn."""


@dataclass(frozen=True, slots=True)
class SheddingSettings:
    """The settings of a gateway's queue and of its retry budget."""

    wait_target_seconds: float = 0.02
    """The longest expected wait with which a query is admitted; WeChat takes a mean of 20 ms as
    overload."""
    length_max: int = 10_000
    """The longest queue, however fast the workers are; a queued query costs about 1 kB and its
    connection."""
    length_first: int = 256
    """The longest queue while it is not known how fast slots become free."""
    holdback: float = 0.2
    """The share of the queue that each level of priority leaves to the levels above it."""
    priorities: int = 5
    retry_share: float = 0.2
    """How many retries each admitted query earns: a fifth more load at most."""
    retries_per_second: float = 10.0
    """How many retries each second earns in addition, so that a quiet queue can retry too."""
    retry_after_seconds_max: float = 30.0

    def __post_init__(self) -> None:
        for name in ("length_max", "length_first", "priorities"):
            if not is_whole(getattr(self, name), 1):
                raise InvalidSelectorSetting(f"{name} has to be a whole number from 1.")
        for name in ("wait_target_seconds", "retry_after_seconds_max"):
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise InvalidSelectorSetting(f"{name} is {value!r}; it has to be above 0.")
        for name in ("holdback", "retry_share", "retries_per_second"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0):
                raise InvalidSelectorSetting(f"{name} is {value!r}; it has to be 0 or more.")
        if self.holdback * (self.priorities - 1) >= 1:
            raise InvalidSelectorSetting("holdback leaves nothing to the lowest priority.")


RATE_WINDOW_SECONDS = 0.1
RATE_WEIGHT = 0.3
"""The weight of the last window in the moving average of the rate."""
FREED_REMEMBERED_MIN = 16.0
"""However old they are, this many freed slots stay in the average: where queries take longer than a
window, most windows are empty, and the rate would fall to nothing between two ends."""
RETRY_AFTER_SECONDS_MIN = 0.001
LEFT_MAX = 64
"""This many removed queries, and two per queued one, may stay in the queue before it is rebuilt."""


class DrainRate:
    """Measures how many slots become free a second: a moving average of windows of 100 ms.

    While a worker has room, as many slots become free as queries come: the workers can do at least
    that, and perhaps much more. Such a window can only raise the rate.
    """

    __slots__ = ("_began", "_count", "_freed", "_seconds", "_slack", "per_second")

    def __init__(self, now: float) -> None:
        self._began = now
        self._count = 0
        self._slack = False
        self._freed = 0.0
        self._seconds = 0.0
        """Moving sums of the freed slots and the lengths of the windows that count."""
        self.per_second: float | None = None
        """The rate; None until the first window is over in which no worker had room."""

    def slack(self, now: float) -> None:
        """Record that a worker has room, so that no query waits for a slot."""
        self._slack = True
        self.look(now)

    def freed(self, now: float) -> None:
        self._count += 1
        self.look(now)

    def look(self, now: float) -> None:
        """Close the window if it is over; an empty window counts too."""
        length = now - self._began
        if 0.0 <= length < RATE_WINDOW_SECONDS:
            return
        if length > 0.0:
            self._add(self._count, length)
        self._began = now
        self._count = 0
        self._slack = False

    def _add(self, count: int, length: float) -> None:
        rate = self.per_second
        if self._slack:
            if rate is None or count <= rate * length:
                return
            self._freed, self._seconds = float(count), length
        else:
            kept = (1.0 - RATE_WEIGHT) ** min(length / RATE_WINDOW_SECONDS, 100.0)
            if self._freed:
                kept = max(kept, min(1.0, FREED_REMEMBERED_MIN / self._freed))
            self._freed = kept * self._freed + count
            self._seconds = kept * self._seconds + length
        # Before the first slot became free, it may do so at any moment.
        self.per_second = max(1.0, self._freed) / self._seconds


class SheddingLine(Generic[Item]):
    """Holds the queued queries of one queue at one gateway, up to a bound."""

    def __init__(self, now: float, settings: SheddingSettings | None = None) -> None:
        self._settings = settings or SheddingSettings()
        self._lines: list[deque[tuple[float, Item]]] = [
            deque() for _ in range(self._settings.priorities)
        ]
        self._length = 0
        self._left: dict[int, None] = {}
        """The identities of items removed before their turn; `take` skips them."""
        self._rate = DrainRate(now)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<SheddingLine, {self._length} wait>"

    def offer(
        self,
        item: Item,
        now: float,
        *,
        deadline: float = float("inf"),
        priority: int = 0,
        do_not_queue: bool = False,
        again: bool = False,
    ) -> Shed | None:
        """Admit a query for which no worker has room, and return None; or return why not.

        `again`: the query was admitted before, and a worker refused it. Later queries do not take
        its place: it is the next of its priority, and the queue may be twice as long for it.
        """
        if do_not_queue:
            return Shed.DO_NOT_QUEUE
        level = min(max(0, priority), self._settings.priorities - 1)
        if again:
            if deadline <= now:
                return Shed.TOO_LATE
            if self._length >= 2.0 * self._room(0, now):
                return Shed.LINE_FULL
            self._lines[level].appendleft((deadline, item))
            self._length += 1
            return None
        if self._length >= self._room(level, now):
            return Shed.LINE_FULL
        if deadline <= now + self.wait_seconds(now, level):
            return Shed.TOO_LATE
        self._lines[level].append((deadline, item))
        self._length += 1
        return None

    def remove(self, item: Item) -> None:
        """Remove a queued query; call it once per query, and only for one that is queued."""
        self._left[id(item)] = None
        self._length -= 1
        if len(self._left) > 2 * self._length + LEFT_MAX:
            left, self._left = self._left, {}
            self._lines = [
                deque(one for one in line if id(one[1]) not in left) for line in self._lines
            ]

    def take(self, now: float) -> tuple[Item | None, list[Item]]:
        """Return the next query, None if the queue is empty, and those whose deadline passed."""
        late: list[Item] = []
        for line in self._lines:
            while line:
                deadline, item = line.popleft()
                if self._left and id(item) in self._left:
                    del self._left[id(item)]
                    continue
                self._length -= 1
                if deadline > now:
                    return item, late
                late.append(item)
        return None, late

    def hopeless(self, now: float) -> list[Item]:
        """Remove the queries whose deadline will pass before their turn, and return them; none
        while the rate is unknown, nor while the queue is about as long as it may be."""
        rate = self._drain(now)
        if rate is None or self._length <= 2.0 * self._room(0, now):
            return []
        found: list[Item] = []
        before = 0
        for number, line in enumerate(self._lines):
            kept: deque[tuple[float, Item]] = deque()
            for deadline, item in line:
                if self._left and id(item) in self._left:
                    del self._left[id(item)]
                elif before and deadline <= now + before / rate:
                    found.append(item)
                else:
                    kept.append((deadline, item))
                    before += 1
            self._lines[number] = kept
        self._length -= len(found)
        return found

    def freed(self, now: float) -> None:
        """Count a slot that became free because a query ended; the rate is measured by these."""
        self._rate.freed(now)

    def passed(self, now: float) -> None:
        """Record that a query found room at once: the rate is now that of the demand."""
        self._rate.slack(now)

    def wait_seconds(self, now: float, priority: int = 0) -> float:
        """Return how long a query would wait if it came now: those before it, by the rate; 0 while
        the rate is unknown."""
        rate = self._drain(now)
        if rate is None:
            return 0.0
        level = min(max(0, priority), self._settings.priorities - 1)
        before = sum(len(line) for line in self._lines[: level + 1])
        return before / rate

    def retry_after_seconds(self, now: float) -> float:
        """Return after how many seconds to retry: when the queue should be half as long as it may
        be."""
        rate = self._drain(now)
        longest = self._settings.retry_after_seconds_max
        if rate is None:
            return min(1.0, longest)
        surplus = self._length - self._room(0, now) / 2
        return min(max(surplus / rate, RETRY_AFTER_SECONDS_MIN), longest)

    def _drain(self, now: float) -> float | None:
        self._rate.look(now)
        rate = self._rate.per_second
        return None if rate is None else max(rate, 1e-3)

    def _room(self, level: int, now: float) -> float:
        """Return how long the whole queue may be for a query of this priority to be admitted."""
        settings = self._settings
        rate = self._drain(now)
        if rate is None:
            longest = float(settings.length_first)
        else:
            longest = max(1.0, rate * settings.wait_target_seconds)
        return min(longest, settings.length_max) * (1.0 - settings.holdback * level)


class RetryBudget:
    """Allows retries as a share of the admitted queries, and a few a second; refuses the rest."""

    __slots__ = ("_per_second", "_share", "_tokens", "_updated_at")

    def __init__(self, now: float, settings: SheddingSettings | None = None) -> None:
        settings = settings or SheddingSettings()
        self._share = settings.retry_share
        self._per_second = settings.retries_per_second
        self._tokens = self._per_second
        self._updated_at = now

    def admitted(self) -> None:
        """Earn a part of a retry: a query was admitted for the first time."""
        self._tokens = min(self._tokens + self._share, self._ceiling)

    def spend(self, now: float) -> bool:
        """Return whether one more retry may be made; if so, count it."""
        elapsed = max(0.0, now - self._updated_at)
        self._updated_at = now
        self._tokens = min(self._tokens + elapsed * self._per_second, self._ceiling)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    @property
    def _ceiling(self) -> float:
        """The most retries that are saved up: ten seconds' worth, so a quiet hour does not earn an
        hour's retries."""
        return 10.0 * max(self._per_second, 1.0) + 100.0 * self._share

    def __repr__(self) -> str:
        return f"<RetryBudget, {self._tokens:.1f} left>"
