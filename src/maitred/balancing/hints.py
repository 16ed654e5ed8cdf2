"""The hint in the answer to a poll: the backlog and the arrival rate of the polled partition.

Hints cross the network, so `BacklogHint` checks its values, and a selector can trust every hint it
receives: no NaN that would poison a sum, no negative weight, no number beyond floating point.
Invalid values are refused rather than clamped: a partition that claims a backlog of minus three has
a fault that people should see. The client that decodes an answer may drop the hint and keep the
task.
"""

from __future__ import annotations

from dataclasses import dataclass

from maitred.balancing.checks import is_number, is_whole
from maitred.errors import InvalidArgument

BACKLOG_MAX = 2**63 - 1
"""The largest backlog that a hint may claim: the wire and the stores count up to this number."""

RATE_PER_SECOND_MAX = 1e12
"""The largest rate that a hint may claim, one task per picosecond; more is a fault, not a load."""


class InvalidHint(InvalidArgument, code="invalid-hint"):
    """The hint holds a backlog or a rate that no partition can have."""


@dataclass(frozen=True, slots=True)
class BacklogHint:
    """Holds the backlog in the store of one partition, and the rate at which tasks are added."""

    backlog: int
    rate_per_second: float = 0.0

    def __post_init__(self) -> None:
        backlog, rate = self.backlog, self.rate_per_second
        if not (is_whole(backlog, 0) and backlog <= BACKLOG_MAX):
            raise InvalidHint(f"The backlog is not a whole number from 0 to {BACKLOG_MAX}.")
        if not (is_number(rate) and 0 <= rate <= RATE_PER_SECOND_MAX):
            raise InvalidHint(f"The rate is not a number from 0 to {RATE_PER_SECOND_MAX:g}.")
