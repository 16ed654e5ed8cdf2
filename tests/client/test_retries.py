"""When a request that failed is sent again: without a cluster, and in one."""

from __future__ import annotations

from random import Random

import pytest

from maitred.client.retries import (
    CLUSTER_LONGEST_SECONDS,
    may_retry,
    patience_seconds,
    retry_delay,
)
from maitred.errors import (
    ConnectionLost,
    Draining,
    InvalidArgument,
    MaitredError,
    NodeUnreachable,
    NotOwner,
    Overloaded,
    SlotTaken,
    Unavailable,
)
from maitred.protocol.cluster import DrainNode
from maitred.protocol.messages import Echo
from maitred.settings import ClientSettings

SETTINGS = ClientSettings(retries=3, away_seconds=5.0)
ECHO = Echo("n", "q", 1, 0, 0, b"")


def again(problem: MaitredError, tries: int, seconds: float, *, in_cluster: bool) -> bool:
    return may_retry(
        ECHO, problem, SETTINGS, tries=tries, fails_seconds=seconds, in_cluster=in_cluster
    )


@pytest.mark.parametrize(
    ("kind", "alone", "soon", "late"),
    [
        (NotOwner, False, True, True),
        (Draining, False, True, True),
        (Unavailable, False, True, False),
        (ConnectionLost, False, True, False),
        (Overloaded, False, False, False),
        (SlotTaken, False, False, False),
        (NodeUnreachable, False, False, False),
        (InvalidArgument, False, False, False),
    ],
)
def test_after_the_usual_tries(
    kind: type[MaitredError], *, alone: bool, soon: bool, late: bool
) -> None:
    problem = kind("It failed.")
    assert again(problem, 4, 1.0, in_cluster=False) is alone
    assert again(problem, 4, 1.0, in_cluster=True) is soon
    assert again(problem, 99, 6.0, in_cluster=True) is late
    first = problem.retry == "soon"
    assert again(problem, 3, 9.0, in_cluster=False) is first
    assert again(problem, 3, 9.0, in_cluster=True) is first


def test_what_may_have_been_done_is_repeated_only_if_that_is_safe() -> None:
    message = DrainNode(0, 0, "a node")
    assert not message.repeatable
    for problem, expected in ((ConnectionLost("lost"), False), (NotOwner("not mine"), True)):
        told = may_retry(message, problem, SETTINGS, tries=1, fails_seconds=0.0, in_cluster=True)
        assert told is expected


def test_a_takeover_is_waited_for_longer_than_a_restart() -> None:
    settings = ClientSettings(retries=3, away_seconds=2.0, takeover_seconds=10.0)

    def is_again(seconds: float, *, awaits_takeover: bool) -> bool:
        return may_retry(
            ECHO,
            Unavailable("The owner cannot be reached."),
            settings,
            tries=4,
            fails_seconds=seconds,
            in_cluster=True,
            awaits_takeover=awaits_takeover,
        )

    assert is_again(9.0, awaits_takeover=True)
    assert not is_again(10.0, awaits_takeover=True)
    assert not is_again(3.0, awaits_takeover=False)
    longer = ClientSettings(away_seconds=60.0, takeover_seconds=10.0)
    assert patience_seconds(longer, awaits_takeover=True) == 60.0


def test_a_pause_in_a_cluster_is_short() -> None:
    settings = ClientSettings(backoff_first_seconds=1.0, backoff_longest_seconds=60.0)
    delays = [retry_delay(n, settings, Random(n), in_cluster=True) for n in range(1, 30)]
    assert max(delays) <= CLUSTER_LONGEST_SECONDS
    assert max(retry_delay(9, settings, Random(n), in_cluster=False) for n in range(9)) > 20
