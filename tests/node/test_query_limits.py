"""The limits of users at a shard, while settings of queues change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from maitred.node.query_limits import UserQueryLimits
from maitred.settings import QuerySettings


def test_settings_that_were_set_live_apply_although_they_take_the_place_of_others() -> None:
    """In memory: settings that were replaced are freed, and the next ones may stand there."""
    users: Any = SimpleNamespace(generation=0, query_limits=lambda _: None)
    limits = UserQueryLimits(users)
    for number in range(1, 200):
        reach = limits.of(QuerySettings(run_seconds=float(number)), "ann")
        assert reach[1] == number
