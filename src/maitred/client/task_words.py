"""What happened to a task, in words: the same in Python and on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import printable

if TYPE_CHECKING:
    from maitred.protocol.inspection import EventKind, HistoryEvent

PLANNED: Final = frozenset[str](("retry", "due", "forgotten"))
"""What a history has only of the future: afterwards the next attempt begins, or nothing is known of
the task any more."""

_DURATIONS: Final = (
    (1e-3, 1e-6, "us"),
    (1.0, 1e-3, "ms"),
    (60.0, 1.0, "s"),
    (3_600.0, 60.0, "min"),
    (86_400.0, 3_600.0, "h"),
    (float("inf"), 86_400.0, "d"),
)
"""Upper bound in seconds, and the unit and its name for durations below it."""

_TWO_DIGITS: Final = 9.95

_WORDS: Final[dict[EventKind, str]] = {
    "timed-out": "timed out",
    "lost": "lost with its worker",
    "returned": "returned by its worker, not begun",
    "retry": "the next attempt is due",
    "due": "its delay ends",
    "dead": "dead letter",
    "forgotten": "result forgotten",
}

LEFT_WORDS: Final = {
    "over": "the task is over",
    "running": "the task runs",
    "waiting": "the task waits for a free slot already",
    "delayed": "the task is delayed",
    "not-delayed": "the task is not delayed",
    "not-dead": "the task is no dead letter",
    "forgotten": "its arguments are no longer kept",
    "unknown": "there is no such task",
    "read-only": "its partition takes no new tasks",
}
"""Why it was not done to a task, by the reason that the partition tells."""


def duration_words(seconds: float) -> str:
    """Return 340 ms, 3.4 s, 12 min."""
    if seconds <= 0:
        return "0 s"
    for below, unit, name in _DURATIONS:
        if seconds < below * 0.9995 or below == float("inf"):
            return f"{two_digits(seconds / unit)} {name}"
    raise AssertionError  # the last is below infinity


def two_digits(value: float, *, whole: bool = False) -> str:
    """Return two significant digits; `3`, not `3.0`."""
    if whole or abs(value) >= _TWO_DIGITS:
        return f"{value:.0f}"
    text = f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
    return text.removesuffix(".0")


def event_words(event: HistoryEvent) -> str:
    """Return one line without the time, as in `failed, attempt 2 at ant: ValueError: no box`."""
    told = _WORDS.get(event.what, event.what)
    if event.by:
        told += f" by {event.by}"
    if event.what == "retry" and event.attempt:
        told = f"attempt {event.attempt} is due"
    elif event.attempt:
        told += f", attempt {event.attempt}"
    if event.worker:
        told += f" at {event.worker}"
    if event.forwarded:
        told += ", by way of a parent partition"
    if event.error or event.message:
        told += f": {': '.join(filter(None, (event.error, event.message)))}"
    return printable(told)
