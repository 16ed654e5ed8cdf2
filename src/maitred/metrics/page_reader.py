"""Reads a page that `exposition` made: the way back from text to numbers.

The page of a process is the one source of its metrics. What exports them in another form, such as
OTLP, reads the page, so that both say the same under the same names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from maitred.metrics.exposition import FamilyKind

_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
_ESCAPE: Final = re.compile(r"\\(.)")
_HELP: Final = "# HELP "
_TYPE: Final = "# TYPE "

Attributes = tuple[tuple[str, str], ...]
"""The labels of a sample in their order, each with its value."""


class NumberSample(NamedTuple):
    """One value of a counter or gauge."""

    labels: Attributes
    value: int | float


class HistogramSample(NamedTuple):
    """One histogram, with the values of each bucket counted apart."""

    labels: Attributes
    bounds: tuple[float, ...]
    """Upper bounds of the buckets; the last bucket has none."""
    counts: tuple[int, ...]
    """How many values are in each bucket alone."""
    total: float
    """The sum of all values."""


class PageFamily(NamedTuple):
    """One metric of a page, with all its samples."""

    name: str
    kind: FamilyKind
    text: str
    numbers: list[NumberSample]
    """The samples of a counter or gauge."""
    histograms: list[HistogramSample]
    """The samples of a histogram."""


class _Buckets:
    """Gathers the lines of one histogram."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self.sums: list[int] = []
        self.total = 0.0

    def sample(self, labels: Attributes) -> HistogramSample:
        counts = (now - before for before, now in zip((0, *self.sums), self.sums, strict=False))
        return HistogramSample(labels, tuple(self.bounds[:-1]), tuple(counts), self.total)


def read_page(page: str) -> list[PageFamily]:
    """Return the families of a page in their order, without those that have no sample."""
    found: list[PageFamily] = []
    gathered: dict[Attributes, _Buckets] = {}
    text = ""
    for line in page.split("\n"):  # a name may have other characters that end a line elsewhere
        if line.startswith(_HELP):
            text = line.removeprefix(_HELP).partition(" ")[2]
        elif line.startswith(_TYPE):
            _end_histograms(found, gathered)
            name, kind = line.removeprefix(_TYPE).split(" ")
            found.append(PageFamily(name, cast("FamilyKind", kind), text, [], []))
        elif line:
            family = found[-1]
            name, labels, value = _sample(line)
            if family.kind == "histogram":
                _gather(gathered, name.removeprefix(family.name), labels, value)
            else:
                family.numbers.append(NumberSample(labels, value))
    _end_histograms(found, gathered)
    return [family for family in found if family.numbers or family.histograms]


def _gather(
    gathered: dict[Attributes, _Buckets], part: str, labels: Attributes, value: float
) -> None:
    bound = ""
    if part == "_bucket":
        bound = dict(labels)["le"]
        labels = tuple(one for one in labels if one[0] != "le")
    histogram = gathered.get(labels)
    if histogram is None:
        histogram = gathered[labels] = _Buckets()
    if part == "_bucket":
        histogram.bounds.append(float(bound))
        histogram.sums.append(int(value))
    elif part == "_sum":
        histogram.total = float(value)


def _end_histograms(found: list[PageFamily], gathered: dict[Attributes, _Buckets]) -> None:
    if gathered:
        found[-1].histograms.extend(one.sample(labels) for labels, one in gathered.items())
        gathered.clear()


def _sample(line: str) -> tuple[str, Attributes, int | float]:
    name, brace, rest = line.partition("{")
    if not brace:
        name, _, value = line.partition(" ")
        return name, (), _number(value)
    inside, _, value = rest.rpartition("} ")
    labels = tuple((key, _ESCAPE.sub(_unescaped, one)) for key, one in _LABEL.findall(inside))
    return name, labels, _number(value)


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
