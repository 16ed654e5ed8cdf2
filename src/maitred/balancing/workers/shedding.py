"""What a gateway does with queries for which no worker has room: a short line, then refusals.

A line bounded only by deadlines harms everybody when there is too much: each query waits until it
is nearly too late, and many are answered to nobody. So a query is let in only if it would wait no
longer than a target, at the rate at which the workers free slots; else it is refused at once, with
the time after which it is worth another try.

Priorities (0 is the highest) share one line, higher ones first. Each level below the highest may
only use a smaller part of the target, so the lowest are refused first and the highest find the line
short.

Deadlines are looked at when a query's turn comes: who would answer nobody is not sent.
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
    """Why a query was not let in."""

    LINE_FULL = "line-full"
    """It would wait longer than the target: overloaded, try again later."""
    DO_NOT_QUEUE = "do-not-queue"
    """The caller asked for now or never."""
    TOO_LATE = "too-late"
    """Its deadline is over, or would be by its turn."""


@dataclass(frozen=True, slots=True)
class SheddingSettings:
    """What can be set about the line and the retries."""

    wait_target_seconds: float = 0.02
    """The longest wait that a query is let in for. WeChat takes a mean of 20 ms as overload."""
    length_max: int = 10_000
    """However fast the workers are; a waiting query costs about 1 kB and its connection."""
    length_first: int = 256
    """The longest line while it is not known how fast slots become free."""
    holdback: float = 0.2
    """What each level of priority leaves of the line to the levels above it."""
    priorities: int = 5
    retry_share: float = 0.2
    """Retries for each query that is let in: a fifth more load at the very most."""
    retries_per_second: float = 10.0
    """And so many more, so that a quiet queue can retry too."""
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
"""Of the last window in the rate."""
RETRY_AFTER_SECONDS_MIN = 0.001
LEFT_MAX = 64
"""Queries that have left the line may stay in it so far; then it is tidied."""


class DrainRate:
    """How many slots become free a second: windows of 100 ms, smoothed.

    While somebody has room, as many get free as are asked: that is no less than the workers can do,
    but it may be much less. Such a window can only raise the rate.
    """

    __slots__ = ("_began", "_count", "_slack", "per_second")

    def __init__(self, now: float) -> None:
        self._began = now
        self._count = 0
        self._slack = False
        self.per_second: float | None = None
        """None until a window is full."""

    def slack(self, now: float) -> None:
        """Somebody has room: nothing waits for a slot."""
        self._slack = True
        self.look(now)

    def freed(self, now: float) -> None:
        self._count += 1
        self.look(now)

    def look(self, now: float) -> None:
        """Close the window if it is over; one in which nothing happened counts too."""
        length = now - self._began
        if 0.0 <= length < RATE_WINDOW_SECONDS:
            return
        if length > 0.0:
            rate = self._count / length
            if self._slack:
                if self.per_second is not None and rate > self.per_second:
                    self.per_second = rate
            elif self.per_second is None:
                self.per_second = rate
            else:
                kept = (1.0 - RATE_WEIGHT) ** min(length / RATE_WINDOW_SECONDS, 100.0)
                self.per_second = kept * self.per_second + (1.0 - kept) * rate
        self._began = now
        self._count = 0
        self._slack = False


class SheddingLine(Generic[Item]):
    """The bounded line of one queue at one gateway."""

    def __init__(self, now: float, settings: SheddingSettings | None = None) -> None:
        self._settings = settings or SheddingSettings()
        self._lines: list[deque[tuple[float, Item]]] = [
            deque() for _ in range(self._settings.priorities)
        ]
        self._length = 0
        self._left: dict[int, None] = {}
        """Those that left the line before their turn, by identity; they are passed over."""
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
        """Let a query in, for which no worker has room; or say why not.

        `again`: it was let in before, and a worker sent it back. Those who came after it do not
        take its place: it is the next of its priority, however long the line is.
        """
        if do_not_queue:
            return Shed.DO_NOT_QUEUE
        level = min(max(0, priority), self._settings.priorities - 1)
        if again:
            if deadline <= now:
                return Shed.TOO_LATE
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
        """A query in the line does not wait any more; once for each, and only for one in it."""
        self._left[id(item)] = None
        self._length -= 1
        if len(self._left) > 2 * self._length + LEFT_MAX:
            left, self._left = self._left, {}
            self._lines = [
                deque(one for one in line if id(one[1]) not in left) for line in self._lines
            ]

    def take(self, now: float) -> tuple[Item | None, list[Item]]:
        """The next query, and those that were too late when their turn came."""
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

    def freed(self, now: float) -> None:
        """A query ended somewhere, so a slot is free: this is what the rate is measured by."""
        self._rate.freed(now)

    def passed(self, now: float) -> None:
        """A query found room at once: the rate of late is what was asked, not what could be."""
        self._rate.slack(now)

    def wait_seconds(self, now: float, priority: int = 0) -> float:
        """How long a query would wait if it came now: those before it, at the rate of late."""
        rate = self._drain(now)
        if rate is None:
            return 0.0
        level = min(max(0, priority), self._settings.priorities - 1)
        before = sum(len(line) for line in self._lines[: level + 1])
        return before / rate

    def retry_after_seconds(self, now: float) -> float:
        """When it is worth trying again: when the line is half as long as it may be."""
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
        """How long the whole line may be for a query of this level to join it."""
        settings = self._settings
        rate = self._drain(now)
        if rate is None:
            longest = float(settings.length_first)
        else:
            longest = max(1.0, rate * settings.wait_target_seconds)
        return min(longest, settings.length_max) * (1.0 - settings.holdback * level)


class RetryBudget:
    """So many retries as a share of what is let in, and a few a second; the rest is refused."""

    __slots__ = ("_per_second", "_share", "_tokens", "_updated_at")

    def __init__(self, now: float, settings: SheddingSettings | None = None) -> None:
        settings = settings or SheddingSettings()
        self._share = settings.retry_share
        self._per_second = settings.retries_per_second
        self._tokens = self._per_second
        self._updated_at = now

    def admitted(self) -> None:
        """A query was let in for the first time: a part of a retry is earned."""
        self._tokens = min(self._tokens + self._share, self._ceiling)

    def spend(self, now: float) -> bool:
        """Whether one more retry may be made; if so it is counted."""
        elapsed = max(0.0, now - self._updated_at)
        self._updated_at = now
        self._tokens = min(self._tokens + elapsed * self._per_second, self._ceiling)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    @property
    def _ceiling(self) -> float:
        """A quiet hour does not earn an hour's retries: at most ten seconds' worth is kept."""
        return 10.0 * max(self._per_second, 1.0) + 100.0 * self._share

    def __repr__(self) -> str:
        return f"<RetryBudget, {self._tokens:.1f} left>"
