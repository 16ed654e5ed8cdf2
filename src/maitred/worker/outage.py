"""Failed requests to the node: each kind is logged once, and retried with a backoff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.backoff import backoff_seconds
from maitred.errors import NO

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from maitred.errors import MaitredError
    from maitred.logs import Logger
    from maitred.settings import ClientSettings


class Outage:
    """Counts the failed requests of this worker: it logs the first failure of each kind and the end
    of the outage, and says how long to wait before the next try."""

    def __init__(
        self,
        settings: ClientSettings,
        random: Random,
        log: Logger,
        clock: Callable[[], float],
    ) -> None:
        self._first = settings.backoff_first_seconds
        self._longest = settings.backoff_longest_seconds
        self._random = random
        self._log = log
        self._clock = clock
        self._began_at = 0.0
        self._tries: dict[tuple[str, int], int] = {}
        """Failed tries in a row, by queue and partition."""
        self._told: set[tuple[str, str | None]] = set()
        """Codes and remedies of the errors that were logged in this outage. The remedy counts: a
        node that is down and a port that another program has taken over both are `unavailable`,
        but need different action."""

    def failed(self, queue: str, partition: int, problem: MaitredError) -> float:
        """Note a failed request to a partition, and return the seconds to wait before the next
        try."""
        is_hopeless = problem.retry is NO
        kind = (problem.code, problem.remedy)
        if not self._tries:
            self._began_at = self._clock()
        if kind not in self._told:
            self._told.add(kind)
            if is_hopeless:
                self._log.error(
                    "the node refuses this worker; trying again", queue=queue, error=problem
                )
            else:
                self._log.warning("the node does not answer; trying again", error=problem)
        tries = self._tries[queue, partition] = self._tries.get((queue, partition), 0) + 1
        if is_hopeless:
            return self._longest
        return backoff_seconds(tries, self._first, self._longest, self._random)

    def worked(self, queue: str, partition: int) -> None:
        """Note an answered request to a partition; log the end of the outage if it was the last."""
        if self._tries and self._tries.pop((queue, partition), 0) and not self._tries:
            self._told.clear()
            seconds = round(self._clock() - self._began_at, 1)
            self._log.info("the node answers again", seconds=seconds)

    def forget(self, queue: str, partitions: int) -> None:
        """Forget failures at partitions beyond this number: the queue does not have them any
        more."""
        for of, partition in list(self._tries):
            if of == queue and partition >= partitions:
                self.worked(of, partition)
