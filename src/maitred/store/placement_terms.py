"""Decides whether a node may join a cluster with its terms of placement.

All nodes and clients must compute the same owner of a partition, so a cluster has one batch size of
spread routing and one rule of placement. A running cluster changes its batch size only gradually: a
node that joins brings the change before it starts, and all others learn of it with the view.
"""

from __future__ import annotations

from msgspec import DecodeError, json

from maitred.errors import CannotStart
from maitred.routing.gradual import GradualChange
from maitred.routing.keys import check_batch_size

Terms = tuple[str, str]
"""The batch size as JSON, a number or a gradual change, and the rule of placement."""


def joined_terms(present: Terms, given: Terms, now: float) -> Terms:
    """Return the terms of the cluster after a node with the given terms joined; raise `CannotStart`
    if the node may not join with them. `now` is the time of the database, in unix seconds."""
    if present[1] != given[1]:
        raise CannotStart(
            f"The cluster places partitions by the rule {present[1]}, and this node by {given[1]}.",
            remedy=f"Set `placement` to {present[1]}; to change it, stop all nodes.",
        )
    old, new = _change(present[0]), _change(given[0])
    if old == new or _final(old, now) == _final(new, now) is not None:
        return present
    if (value := _final(old, now)) is not None and new.old == value and new.start > now:
        return given
    raise CannotStart(
        f"The cluster has the batch size {present[0]} of spread routing, and this node {given[0]}.",
        remedy=f"Set `spread_batch` to {present[0]}; to change it, use a gradual change from the "
        "present value that starts in the future, or stop all nodes.",
    )


def _change(given: str) -> GradualChange[int]:
    try:
        return GradualChange.parse(json.decode(given), check_batch_size)
    except DecodeError:
        raise CannotStart(f"The batch size {given!r} of spread routing is not JSON.") from None


def _final(change: GradualChange[int], now: float) -> int | None:
    """Return the value that no time changes any more; None while the change is not over."""
    return change.new if change.old == change.new or change.end <= now else None
