"""A setting that changes for one key after another, at the same moments everywhere.

Changing the batch size moves most partitions; moving all of them at once would be an outage. So
the change is stretched over a span of wall-clock time, and each key flips from the old value to the
new one at a moment of its own, given by its fingerprint. Whoever has the change and a synchronised
clock knows every flip, without a word between hosts. `when` tells the moment, so that an owner can
recheck its ownership exactly then instead of waiting for some other event to remind it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from maitred.errors import InvalidGradualChange
from maitred.routing.fingerprint import fingerprint32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = TypeVar("Value")

_HASH_MAX = 2**32 - 1
_FIELDS = ("old", "new", "start", "end")
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class GradualChange(Generic[Value]):
    """From `old` at `start` to `new` at `end`, both in unix seconds."""

    old: Value
    new: Value
    start: float
    end: float

    def __post_init__(self) -> None:
        for name, moment in (("start", self.start), ("end", self.end)):
            if not math.isfinite(moment):
                raise InvalidGradualChange(f"The {name} of a gradual change is {moment}.")
        if self.start > self.end:
            raise InvalidGradualChange(
                f"The change starts at {format_time(self.start)}, after its end at "
                f"{format_time(self.end)}.",
                remedy="Swap the two times.",
            )

    @classmethod
    def constant(cls, value: Value) -> GradualChange[Value]:
        """No change at all."""
        return cls(value, value, 0.0, 0.0)

    @classmethod
    def parse(
        cls, given: object, convert: Callable[[Any], Value] | None = None
    ) -> GradualChange[Value]:
        """From a plain value, or a mapping of old, new, start and end.

        Times are RFC 3339 text or unix seconds. `convert` checks and converts each value.
        """
        read: Callable[[Any], Value] = convert or (lambda value: value)
        if not isinstance(given, dict):
            return cls.constant(read(given))
        _check_fields(given)
        return cls(
            read(given["old"]),
            read(given["new"]),
            parse_time(given["start"]),
            parse_time(given["end"]),
        )

    def value(self, key: str, now: float) -> Value:
        """The value that holds for the key at that moment."""
        return self.new if self._flipped(fingerprint32(key), now) else self.old

    def when(self, key: str) -> float | None:
        """The first moment at which the new value holds; None if nothing changes."""
        if self.old == self.new:
            return None
        place = fingerprint32(key)
        moment = self.start + (self.end - self.start) * ((place + 1) / _HASH_MAX)
        # The sum above is rounded; `value` decides. Step to the exact moment of its flip.
        while not self._flipped(place, moment):
            moment = math.nextafter(moment, math.inf)
        while self._flipped(place, earlier := math.nextafter(moment, -math.inf)):
            moment = earlier
        return moment

    def _flipped(self, place: int, now: float) -> bool:
        if now >= self.end:
            return True
        if now <= self.start:
            return False
        return place < int((now - self.start) / (self.end - self.start) * _HASH_MAX)


def parse_time(given: object) -> float:
    """Unix seconds, from a number or from RFC 3339 text."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    if isinstance(given, str):
        if _RFC_3339.fullmatch(given):
            try:
                return datetime.fromisoformat(given.upper()).timestamp()
            except ValueError:
                pass  # a month 13 or an hour 25: the sentence below is right for those too
        try:
            return float(given)
        except ValueError:
            pass  # not a number either
    raise InvalidGradualChange(
        f"{given!r} is not a time.",
        remedy="Give RFC 3339 with an offset (2026-11-15T20:00:00Z) or unix seconds.",
    )


def format_time(moment: float) -> str:
    """RFC 3339 in UTC to the microsecond; plain seconds beyond the calendar's years."""
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{moment} s"


def _check_fields(given: Mapping[Any, object]) -> None:
    missing = [name for name in _FIELDS if name not in given]
    unknown = [name for name in given if name not in _FIELDS]
    if missing or unknown:
        problem = f"lacks {', '.join(missing)}" if missing else f"has an unknown {unknown[0]!r}"
        raise InvalidGradualChange(
            f"The gradual change {problem}.", remedy=f"It takes {', '.join(_FIELDS)}."
        )
