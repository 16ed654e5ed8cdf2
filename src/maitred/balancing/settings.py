"""The limits of the selectors, each with its default and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass

from maitred.balancing.checks import is_number, is_whole
from maitred.errors import InvalidArgument


class InvalidSelectorSetting(InvalidArgument, code="invalid-selector-setting"):
    """A setting of a selector is out of its range."""


@dataclass(frozen=True, slots=True)
class SelectorSettings:
    """The settings of all selectors; each algorithm reads those that concern it."""

    queues_max: int = 3_000
    """How many queues a selector remembers for reads, and as many for writes; it evicts the least
    recently used. Costs about 300 bytes a queue. With more queues, picks are fair but random."""

    weight_threshold: float = 100.0
    """The weighted algorithm follows the weights once some partition weighs more than this. A
    healthy partition (a few hundred tasks a second, each matched in 10 ms) stays below it."""

    weight_half_life_seconds: float = 10.0
    """The half-life of a reported weight, in seconds. It hardly matters to a busy client: the
    selection study found mean waits within 1 % of each other from 1 s to no decay at all. It is for
    clients that fall silent: ten seconds forget a backlog of 3,000 within a minute (five halvings
    bring it below the threshold), and bridge the gap between two polls of a partition."""

    round_robin_every: int = 10
    """One in this many reads of the weighted algorithm goes round robin, whatever the weights are:
    each of N partitions is polled at least once in 10 x N reads. Costs a tenth of the polls."""

    def __post_init__(self) -> None:
        _check_whole("queues_max", self.queues_max)
        _check_whole("round_robin_every", self.round_robin_every)
        threshold, half_life = self.weight_threshold, self.weight_half_life_seconds
        if not (is_number(threshold) and threshold >= 0):
            raise InvalidSelectorSetting(
                f"weight_threshold is {threshold!r}; it has to be a number of 0 or more."
            )
        if not (is_number(half_life) and half_life > 0):
            raise InvalidSelectorSetting(
                f"weight_half_life_seconds is {half_life!r}; it has to be a number above 0."
            )


def _check_whole(name: str, value: int) -> None:
    if not is_whole(value, 1):
        raise InvalidSelectorSetting(f"{name} is {value!r}; it has to be a whole number from 1.")
