"""How long a task or a query keeps its slot: a distribution, or a file of measured times."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArgument, UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

SECONDS_MAX: Final = 86_400.0
"""Longest service time: a day. A larger number is more likely milliseconds than a wish."""

ROWS_MAX: Final = 1_000_000
"""Most rows of a file: a larger sample tells no more, and each takes memory."""

NORMAL_99: Final = 2.326_347_9
"""The 99th percentile of the standard normal distribution."""

GRAMMAR: Final = {
    "constant": "constant:SECONDS",
    "exponential": "exponential:MEAN",
    "uniform": "uniform:SHORTEST:LONGEST",
    "lognormal": "lognormal:MEDIAN:P99",
    "csv": "csv:FILE or csv:FILE:COLUMN",
}
"""Every way to say service times, all in seconds."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Service times of one kind of work, in seconds."""

    text: str
    """The text that `service_times` parsed."""
    mean_seconds: float
    draw: Callable[[Random], float] = field(compare=False, repr=False)
    """Returns the next service time."""


def service_times(text: str) -> ServiceTimes:
    """Read `exponential:0.2` and the like, as `GRAMMAR` has them.

    Raise `UnknownAlgorithm` for another distribution, and `InvalidArgument` for parameters or a
    file that cannot be used.
    """
    name, _, rest = text.partition(":")
    if name not in GRAMMAR:
        raise UnknownAlgorithm.named("kind of service times", name, GRAMMAR)
    if name == "csv":
        measured = _measured(rest)
        return ServiceTimes(text, fmean(measured), lambda random: random.choice(measured))
    numbers = _numbers(text, rest)
    match name, numbers:
        case "constant", [seconds]:
            return ServiceTimes(text, seconds, lambda _: seconds)
        case "exponential", [mean]:
            return ServiceTimes(text, mean, lambda random: random.expovariate(1 / mean))
        case "uniform", [shortest, longest] if shortest <= longest:
            mean = (shortest + longest) / 2
            return ServiceTimes(text, mean, lambda random: random.uniform(shortest, longest))
        case "lognormal", [median, p99] if median < p99:
            spread = math.log(p99 / median) / NORMAL_99
            mean = median * math.exp(spread**2 / 2)
            centre = math.log(median)
            return ServiceTimes(text, mean, lambda random: random.lognormvariate(centre, spread))
    raise _not_understood(text)


def _not_understood(text: str) -> InvalidArgument:
    name = text.partition(":")[0]
    return InvalidArgument(
        f"{text!r} does not say service times.",
        remedy=f"Write {GRAMMAR[name]}, in seconds from above 0 to {SECONDS_MAX:,.0f}.",
    )


def _numbers(text: str, rest: str) -> list[float]:
    try:
        numbers = [float(part) for part in rest.split(":")]
    except ValueError:
        raise _not_understood(text) from None
    if not all(0 < number <= SECONDS_MAX for number in numbers):
        raise _not_understood(text)
    return numbers


def _measured(rest: str) -> list[float]:
    path, column = Path(rest), ""
    if not path.exists() and ":" in rest:
        before, _, column = rest.rpartition(":")
        path = Path(before)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _column(path, csv.reader(file), column)
    except OSError as problem:
        raise InvalidArgument(
            f"Cannot read the service times in {path}: {problem.strerror}.",
            remedy="Name a CSV file with one time, in seconds, per row.",
        ) from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InvalidArgument(f"{path} is no CSV file: {problem}.") from None


def _column(path: Path, rows: Iterator[list[str]], column: str) -> list[float]:
    found: list[float] = []
    at = 0
    for number, row in enumerate(rows, 1):
        if number == 1 and (column or not _is_number(row[0] if row else "")):
            if column and column not in row:
                raise InvalidArgument(
                    f"{path} has no column {column!r}.",
                    remedy=f"Its first row names: {', '.join(row) or 'nothing'}.",
                )
            at = row.index(column) if column else 0
            continue
        if not row:
            continue
        value = row[at] if at < len(row) else ""
        if not _is_number(value) or not 0 < float(value) <= SECONDS_MAX:
            raise InvalidArgument(
                f"Row {number} of {path} has {value!r}, which is no service time.",
                remedy=f"Times are in seconds, from above 0 to {SECONDS_MAX:,.0f}.",
            )
        found.append(float(value))
        if len(found) > ROWS_MAX:
            raise InvalidArgument(
                f"{path} has more than {ROWS_MAX:,} rows.", remedy="Take a sample of them."
            )
    if not found:
        raise InvalidArgument(
            f"{path} has no service times.", remedy="Put one time, in seconds, on each row."
        )
    return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
