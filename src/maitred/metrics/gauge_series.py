"""The last hour of a few numbers of a shard, or of each of many workers, in bounded memory. Pure.

Each number is measured once a step (`metrics/points.py`), and NaN in the steps in which it was not
measured. A number takes 1.4 KiB for the hour, as 32-bit floats: seven digits, which is more than a
chart shows.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from math import isnan, nan
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maitred.metrics.points import STEPS
from maitred.metrics.series import is_left_out

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Key = TypeVar("Key", bound="Hashable")

DIGITS: Final = 6
"""Decimal places that are told: microseconds of a delay."""

_UNKNOWN: Final = array("f", [nan]) * STEPS


class GaugeSeries:
    """The last hour of one thing: a ring of `STEPS` values for each of its numbers."""

    __slots__ = ("_columns", "written")

    def __init__(self, width: int) -> None:
        self._columns = [_UNKNOWN[:] for _ in range(width)]
        self.written = -1
        """The last step that was written; -1: none."""

    def write(self, step: int, values: Sequence[float | None]) -> None:
        """Write what was measured in a step, in the order of the columns; None: not measured. A
        step before the last one is left out while the clock was set back a little; after a larger
        step back the series begins anew."""
        if is_left_out(step, self.written):
            return
        if not self.written < step < self.written + STEPS:
            self._columns = [_UNKNOWN[:] for _ in self._columns]
        else:
            for skipped in range(self.written + 1, step):
                for column in self._columns:
                    column[skipped % STEPS] = nan
        self.written = step
        for column, value in zip(self._columns, values, strict=True):
            column[step % STEPS] = nan if value is None else value

    def read(self, last: int, steps: int) -> list[list[float | None]]:
        """Return the values of the steps up to `last`, by column; None: not measured."""
        wanted = range(last - min(steps, STEPS) + 1, last + 1)
        first = self.written - STEPS
        return [
            [
                None if not first < one <= self.written else _told(column[one % STEPS])
                for one in wanted
            ]
            for column in self._columns
        ]


def _told(value: float) -> float | None:
    return None if isnan(value) else round(value, DIGITS)


class GaugeTable(Generic[Key]):
    """The series of many things of one kind, at most `most` of them."""

    def __init__(self, width: int, most: int) -> None:
        self._width = width
        self._most = most
        self._series: OrderedDict[Key, GaugeSeries] = OrderedDict()
        """In the order in which they were written last."""

    def __len__(self) -> int:
        return len(self._series)

    def write(self, key: Key, step: int, values: Sequence[float | None]) -> None:
        """Write what was measured of one thing. If there is no room for another series, it takes
        the place of the one that was not written for longest, unless all are still written."""
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._most:
                oldest, its = next(iter(self._series.items()))
                if its.written >= step - 1:
                    return
                del self._series[oldest]
            series = self._series[key] = GaugeSeries(self._width)
        self._series.move_to_end(key)
        series.write(step, values)

    def forget(self, step: int) -> None:
        """Drop the series that were not written in the hour before the step."""
        for key, series in list(self._series.items()):
            if series.written > step - STEPS:
                break
            del self._series[key]

    def read(self, key: Key, last: int, steps: int) -> list[list[float | None]]:
        """Return the values of the steps up to `last`, by column; no columns for a thing without a
        series."""
        series = self._series.get(key)
        return [] if series is None else series.read(last, steps)
