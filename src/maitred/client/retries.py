"""Decides whether a request that failed is sent again.

Without a cluster, a request is tried again a few times, after a backoff. In a cluster, the members
agree on a new owner within seconds when a node stops or dies, so requests are tried again until
then: at once when a newer view names another owner, and after a backoff otherwise. For a node that
no longer answers while other members do, that is `takeover_seconds`; without any other member, it
is `away_seconds`, as without a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.backoff import backoff_seconds
from maitred.errors import SOON, UNKNOWN, ConnectionLost, Draining, NotOwner, Unavailable

if TYPE_CHECKING:
    from random import Random

    from maitred.errors import MaitredError
    from maitred.protocol.messages import AnyRequest
    from maitred.settings import ClientSettings

CLUSTER_LONGEST_SECONDS: Final = 0.5
"""Longest backoff in a cluster: a node that a member could not reach a moment ago may be back
without a newer view, which would end the wait."""


def may_retry(
    message: AnyRequest,
    problem: MaitredError,
    settings: ClientSettings,
    *,
    tries: int,
    fails_seconds: float,
    in_cluster: bool,
    awaits_takeover: bool = False,
) -> bool:
    """Return whether another try may help, after this many that failed in this many seconds. Its
    deadline limits it as well. `awaits_takeover`: the cluster is about to declare the owner dead.
    """
    # A request that may have been done is tried again only if doing it twice does no harm.
    in_doubt = problem.outcome is UNKNOWN and not message.repeatable
    if problem.retry is not SOON or in_doubt:
        return False
    if tries <= settings.retries:
        return True
    if not in_cluster:
        return False
    if isinstance(problem, NotOwner | Draining):
        return True
    # A member could not reach the owner. Errors of other classes are not about the owner.
    is_about_owner = type(problem) is Unavailable or isinstance(problem, ConnectionLost)
    return is_about_owner and fails_seconds < patience_seconds(
        settings, awaits_takeover=awaits_takeover
    )


def patience_seconds(settings: ClientSettings, *, awaits_takeover: bool) -> float:
    """Return for how long requests wait for a node that is away, from when it was last heard."""
    if awaits_takeover:
        return max(settings.away_seconds, settings.takeover_seconds)
    return settings.away_seconds


def retry_delay(tries: int, settings: ClientSettings, random: Random, *, in_cluster: bool) -> float:
    """Return the backoff before the next try, in seconds."""
    longest = settings.backoff_longest_seconds
    if in_cluster:
        longest = min(longest, CLUSTER_LONGEST_SECONDS)
    first = min(settings.backoff_first_seconds, longest)
    return backoff_seconds(tries, first, longest, random)
