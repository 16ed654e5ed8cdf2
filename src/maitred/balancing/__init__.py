"""Choose the partition to write a task to, or to poll for one; everything here is pure."""

from maitred.balancing.factory import ALGORITHMS, selector
from maitred.balancing.fewest_polls import FewestPolls
from maitred.balancing.hints import (
    BACKLOG_MAX,
    RATE_PER_SECOND_MAX,
    BacklogHint,
    InvalidHint,
)
from maitred.balancing.interface import PartitionSelector, Poll, PollOwner, RandomSource
from maitred.balancing.round_robin import RoundRobin
from maitred.balancing.settings import InvalidSelectorSetting, SelectorSettings
from maitred.balancing.uniform import Uniform
from maitred.balancing.weighted import Weighted

__all__ = [
    "ALGORITHMS",
    "BACKLOG_MAX",
    "RATE_PER_SECOND_MAX",
    "BacklogHint",
    "FewestPolls",
    "InvalidHint",
    "InvalidSelectorSetting",
    "PartitionSelector",
    "Poll",
    "PollOwner",
    "RandomSource",
    "RoundRobin",
    "SelectorSettings",
    "Uniform",
    "Weighted",
    "selector",
]
