"""Numbers as people read them: 1.2k tasks, 3.4 s. JSON has the exact numbers."""

from __future__ import annotations

from maitred.client.task_words import duration_words, two_digits

_THOUSANDS = "kMGTPE"
_ROUNDED_UP = 999.5


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
    return Shown(two_digits(value, whole=not unit) + unit)


def rate(per_second: float) -> Shown:
    """The same with a fraction for small rates: 0.5."""
    return Shown(two_digits(per_second)) if per_second < _ROUNDED_UP else count(per_second)


def duration(seconds: float) -> Shown:
    """340 ms, 3.4 s, 12 min."""
    return Shown(duration_words(seconds))


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
    return Shown(f"{two_digits(value, whole=unit == 'B')} {unit}")
