"""The text format of Prometheus, version 0.0.4: families of samples, each with a help and a type.

Processes of one node tell each other samples that are rendered already, by the name of their
family; the process that answers a scrape puts those of one family together, as the format wants.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maitred.metrics.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

FamilyKind = Literal["counter", "gauge", "histogram"]

Lines = dict[str, list[str]]
"""Rendered samples, by the name of their family."""


class Family(NamedTuple):
    """One metric: all its samples have this name, and differ in their labels."""

    name: str
    kind: FamilyKind
    text: str
    """What the value says, in one sentence without a line break."""
    labels: tuple[str, ...] = ()


class Samples:
    """Gathers the samples of one process."""

    def __init__(self, **labels: object) -> None:
        """`labels` are those of every sample, such as the process."""
        self._common = labels
        self.lines: Lines = {}

    def add(self, family: Family, value: float, **labels: object) -> None:
        """Add a sample of a counter or gauge."""
        self._lines(family).append(sample(family.name, {**labels, **self._common}, value))

    def histogram(self, family: Family, measured: Histogram, **labels: object) -> None:
        """Add the buckets, the sum and the count of a histogram."""
        self.buckets(family, measured.bounds, measured.counts, measured.total, **labels)

    def buckets(
        self,
        family: Family,
        bounds: Iterable[float],
        counts: Iterable[float],
        total: float,
        **labels: object,
    ) -> None:
        """Add a histogram with so many values in each bucket, the last of which has no bound."""
        lines = self._lines(family)
        lines += histogram_samples(family.name, {**labels, **self._common}, bounds, counts, total)

    def _lines(self, family: Family) -> list[str]:
        return self.lines.setdefault(family.name, [])


def page(families: Iterable[Family], parts: Iterable[Lines]) -> str:
    """Return the page with the samples of all parts, in the order of the families. Families without
    samples are left out."""
    gathered = list(parts)
    lines = []
    for family in families:
        found = [line for part in gathered for line in part.get(family.name, ())]
        if found:
            lines += head(family.name, family.text, family.kind)
            lines += found
    return "\n".join(lines) + "\n"


def counter(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, object], float]]
) -> list[str]:
    """Return the lines of a counter."""
    return [*head(name, text, "counter"), *(sample(name, *one) for one in samples)]


def gauge(name: str, text: str, value: float) -> list[str]:
    """Return the lines of a gauge without labels."""
    return gauges(name, text, [({}, value)])


def gauges(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, object], float]]
) -> list[str]:
    """Return the lines of a gauge with labels."""
    return [*head(name, text, "gauge"), *(sample(name, *one) for one in samples)]


def histogram_samples(
    name: str,
    labels: Mapping[str, object],
    bounds: Iterable[float],
    counts: Iterable[float],
    total: float,
) -> list[str]:
    """Return the lines of one histogram without its head."""
    sums = list(accumulate(counts))
    lines = [
        sample(f"{name}_bucket", {**labels, "le": bound}, count)
        for bound, count in zip((*bounds, "+Inf"), sums, strict=True)
    ]
    lines.append(sample(f"{name}_sum", labels, total))
    lines.append(sample(f"{name}_count", labels, sums[-1]))
    return lines


def head(name: str, text: str, kind: FamilyKind) -> list[str]:
    """Return the two lines before the samples of a family."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def sample(name: str, labels: Mapping[str, object], value: float) -> str:
    """Return the line of one sample."""
    inside = ",".join(f'{key}="{_escaped(str(one))}"' for key, one in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    # A name is any text. A carriage return is no line break to Prometheus, but to some other tools.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped.replace("\r", " ")
