"""A setting that changes for one key after another, at the same times on every host.

Changing the batch size moves most partitions; moving all of them at once would be an outage. So
the change is stretched over a span of wall-clock time, and each key flips from the old value to the
new one at a time of its own, given by its fingerprint. Every host that has the change and a
synchronised clock knows every flip, without messages between hosts. `when` returns that time, so
that an owner can recheck its ownership exactly then instead of waiting for another event.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from maitred.errors import InvalidGradualChange, InvalidName
from maitred.routing.fingerprint import fingerprint32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = TypeVar("Value")

_HASH_MAX = 2**32 - 1
_FIELDS = ("old", "new", "start", "end")
_RFC_3339 = re.compile(
    r"(?P<minute>\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:)(?P<second>\d\d)"
    r"(?P<rest>(\.\d+)?([Zz]|[+-]\d\d:\d\d))",
    re.ASCII,
)
_UNIX_SECONDS = re.compile(r"[+-]?\d+(\.\d*)?([Ee][+-]?\d+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class GradualChange(Generic[Value]):
    """Changes a value from `old` at `start` to `new` at `end`, both in unix seconds."""

    old: Value
    new: Value
    start: float
    end: float

    def __post_init__(self) -> None:
        for name, moment in (("start", self.start), ("end", self.end)):
            if not math.isfinite(moment):
                raise InvalidGradualChange(f"The {name} of a gradual change is {moment}.")
        if not math.isfinite(self.end - self.start):
            raise InvalidGradualChange("The change takes longer than numbers go.")
        if self.start > self.end:
            raise InvalidGradualChange(
                f"The change starts at {format_time(self.start)}, after its end at "
                f"{format_time(self.end)}.",
                remedy="Swap the two times.",
            )

    @classmethod
    def constant(cls, value: Value) -> GradualChange[Value]:
        """Return a change that always has this one value."""
        return cls(value, value, 0.0, 0.0)

    @classmethod
    def parse(
        cls, given: object, convert: Callable[[Any], Value] | None = None
    ) -> GradualChange[Value]:
        """Parse a plain value, or a mapping of old, new, start and end.

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
        """Return the value that holds for the key at the unix time `now`."""
        if math.isnan(now):
            raise InvalidGradualChange("The clock returned NaN, which is not a time.")
        return self.new if self._flipped(_place(key), now) else self.old

    def when(self, key: str) -> float | None:
        """Return the first unix time at which the new value holds; None if nothing changes."""
        if self.old == self.new:
            return None
        place = _place(key)
        old, new = self.start, self.end
        if old == new:
            return new
        # The formula gives the time of the flip only rounded, and `value` decides: search near it.
        guess = old + (new - old) * ((place + 1) / _HASH_MAX)
        margin = (new - old) * 2.0**-40 + 4 * math.ulp(guess)
        if old < guess - margin and not self._flipped(place, guess - margin):
            old = guess - margin
        if guess + margin < new and self._flipped(place, guess + margin):
            new = guess + margin
        first, last = _ordinal(old), _ordinal(new)
        while last - first > 1:
            middle = (first + last) // 2
            if self._flipped(place, _from_ordinal(middle)):
                last = middle
            else:
                first = middle
        return _from_ordinal(last)

    def _flipped(self, place: int, now: float) -> bool:
        if now >= self.end:
            return True
        if now <= self.start:
            return False
        return place < int((now - self.start) / (self.end - self.start) * _HASH_MAX)


def _place(key: str) -> int:
    try:
        return fingerprint32(key)
    except UnicodeEncodeError:
        raise InvalidName(f"The key {key!r} is not valid Unicode.") from None


def _ordinal(number: float) -> int:
    """Return the rank of a float among all floats, so that a bisection takes at most 64 steps."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits) if bits >= 0 else -(2**63) - int(bits)


def _from_ordinal(ordinal: int) -> float:
    bits = ordinal if ordinal >= 0 else -(2**63) - ordinal
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def parse_time(given: object) -> float:
    """Return unix seconds, from a number or from RFC 3339 text."""
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        if isinstance(given, str) and _UNIX_SECONDS.fullmatch(given):
            return float(given)
        if isinstance(given, str) and (found := _RFC_3339.fullmatch(given)):
            # `datetime` has no leap seconds: 23:59:60 is the second after :59.
            leaps = found["second"] == "60"
            text = f"{found['minute']}{'59' if leaps else found['second']}{found['rest']}"
            return datetime.fromisoformat(text.upper()).timestamp() + leaps
    except (ValueError, OverflowError):
        pass  # a month 13, or more seconds than a float holds: the error below applies
    shown = repr(given)
    raise InvalidGradualChange(
        f"{shown if len(shown) < 60 else shown[:60] + '...'} is not a time.",
        remedy="Give RFC 3339 with an offset (2026-11-15T20:00:00Z) or unix seconds.",
    )


def format_time(moment: float) -> str:
    """Format as RFC 3339 in UTC, rounded up to a microsecond so that a flip is over by then."""
    try:
        numerator, denominator = moment.as_integer_ratio()
        up = timedelta(microseconds=-(-numerator * 1_000_000 // denominator))
        return (_EPOCH + up).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return f"{moment} s"


def _check_fields(given: Mapping[Any, object]) -> None:
    missing = [name for name in _FIELDS if name not in given]
    unknown = [name for name in given if name not in _FIELDS]
    if missing or unknown:
        problem = f"lacks {', '.join(missing)}" if missing else f"has an unknown {unknown[0]!r}"
        raise InvalidGradualChange(
            f"The gradual change {problem}.", remedy=f"It takes {', '.join(_FIELDS)}."
        )
