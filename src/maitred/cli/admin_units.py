"""Numbers as people read them: 1.2k tasks, 3.4 s. JSON has the exact numbers."""

from __future__ import annotations

_DURATIONS = (
    (1e-3, 1e-6, "us"),
    (1.0, 1e-3, "ms"),
    (60.0, 1.0, "s"),
    (3_600.0, 60.0, "min"),
    (86_400.0, 3_600.0, "h"),
    (float("inf"), 86_400.0, "d"),
)
"""Upper bound in seconds, and the unit and its name for durations below it."""

_THOUSANDS = "kMGTPE"
_ROUNDED_UP = 999.5
_TWO_DIGITS = 9.95


class Shown(int):
    """A cell that is aligned as a number and printed as words."""

    words: str

    def __new__(cls, words: str) -> Shown:
        made = super().__new__(cls)
        made.words = words
        return made

    def __str__(self) -> str:
        return self.words


def count(number: float) -> Shown:
    """12, 1.2k, 34M."""
    value = float(number)
    unit = ""
    for letter in _THOUSANDS:
        if abs(value) < _ROUNDED_UP:
            break
        value, unit = value / 1_000, letter
    return Shown(_digits(value, whole=not unit) + unit)


def rate(per_second: float) -> Shown:
    """The same with a fraction for small rates: 0.5."""
    return (
        Shown(_digits(per_second, whole=False)) if per_second < _ROUNDED_UP else count(per_second)
    )


def duration(seconds: float) -> Shown:
    """340 ms, 3.4 s, 12 min."""
    if seconds <= 0:
        return Shown("0 s")
    for below, unit, name in _DURATIONS:
        if seconds < below * 0.9995 or below == float("inf"):
            return Shown(f"{_digits(seconds / unit, whole=False)} {name}")
    raise AssertionError  # the last is below infinity


def ago(seconds: float | None) -> Shown | None:
    """3.4 s ago; None if it is not known when."""
    return None if seconds is None else Shown(f"{duration(seconds)} ago")


def size(number_of_bytes: int) -> Shown:
    """12 B, 3.4 KiB, 16 GiB."""
    value, unit = float(number_of_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1_000:
            break
        value, unit = value / 1_024, larger
    return Shown(f"{_digits(value, whole=unit == 'B')} {unit}")


def _digits(value: float, *, whole: bool) -> str:
    """Return two significant digits; `3`, not `3.0`."""
    if whole or abs(value) >= _TWO_DIGITS:
        return f"{value:.0f}"
    text = f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
    return text.removesuffix(".0")
