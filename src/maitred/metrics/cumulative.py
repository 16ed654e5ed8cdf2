"""Since when each series counts: OTLP wants that moment with every sum, Prometheus does not.

The sums of a node come from several processes. When a shard is started again its sums begin at 0,
while those of the others go on. So a series that has fallen is taken to count since the last page
on which it was higher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

PAGES_KEPT: Final = 20
"""For how many pages a series is remembered that is not on them: longer than a shard takes to
start, or to answer again. It bounds the memory for queues that are deleted."""


class _Sums(NamedTuple):
    since: int
    sums: tuple[float, ...]
    page: int


class CumulativeSeries:
    """Tells of each series of a process since when it counts, in nanoseconds since 1970."""

    def __init__(self, began: int) -> None:
        """`began` is when the process began, with all sums at 0."""
        self._began = began
        self._last_page = began
        self._page = 0
        self._series: dict[Hashable, _Sums] = {}

    def __len__(self) -> int:
        return len(self._series)

    def since(self, key: Hashable, sums: tuple[float, ...]) -> int:
        """Return since when the series counts that has these sums on the present page."""
        known = self._series.get(key)
        since = self._began if known is None else known.since
        if known is not None and (
            len(sums) != len(known.sums)
            or any(now < before for now, before in zip(sums, known.sums, strict=True))
        ):
            since = self._last_page
        self._series[key] = _Sums(since, sums, self._page)
        return since

    def moment(self, now: int) -> int:
        """Return the moment of the present page: now, but after that of the page before, also if
        the clock was set back."""
        return max(now, self._last_page + 1)

    def end_page(self, moment: int) -> None:
        """End the present page, which was of this moment."""
        self._last_page = moment
        self._page += 1
        if self._page % PAGES_KEPT == 0:
            oldest = self._page - PAGES_KEPT
            self._series = {key: one for key, one in self._series.items() if one.page >= oldest}
