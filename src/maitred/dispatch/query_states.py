"""A query's life as two tables: which status may follow which, and what follows an accident.

An accident is an event against the plan: the worker refuses the query, its link breaks, its
deadline passes, its caller leaves. What follows depends on the query's status, because a query must
not run twice unless its caller allows that, and rows that a caller has are not taken back.

A change that is not in `FOLLOWS`, and an accident that is not in `_VERDICTS`, is a mistake in the
code that made it, and raises `InternalError`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from maitred.errors import InternalError
from maitred.protocol.queries import QUERIES_UNDER_WAY

if TYPE_CHECKING:
    from maitred.protocol.queries import QueryStatus

FOLLOWS: Final[dict[QueryStatus, frozenset[QueryStatus]]] = {
    "waiting": frozenset({"connecting", "running", "cancelled", "refused", "lost", "late"}),
    "connecting": frozenset({"waiting", "running", "cancelled", "refused", "late"}),
    "running": frozenset(
        {"waiting", "streaming", "done", "failed", "cancelled", "refused", "lost", "late"}
    ),
    "streaming": frozenset({"done", "failed", "cancelled", "lost", "late"}),
    "done": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "refused": frozenset(),
    "lost": frozenset(),
    "late": frozenset(),
}
"""Which status may follow which.

- `waiting`: for a slot, or for a hook. A query waits again if its worker did not begin it, or if it
  may run elsewhere. A query whose worker was lost, and which finds no other one, is `lost`.
- `connecting`: it has a slot, and the gateway connects to its worker. With an open connection a
  query skips this status.
- `running`: it was sent; only the worker knows whether it has begun.
- `streaming`: rows were handed to its caller.
"""

UNDER_WAY: Final = frozenset(QUERIES_UNDER_WAY)
WITHOUT_WORKER: Final = frozenset({"waiting", "connecting"})


class Accident(Enum):
    """An event against the plan."""

    NOTHING_DONE = "nothing-done"
    """The worker, or the node, says that the query was not begun; another worker may take it."""
    REFUSED = "refused"
    """The query is refused for what it asks: no other worker would take it either."""
    LINK_LOST = "link-lost"
    HUNG = "hung"
    """The worker is connected, and silent."""
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


class Verdict(Enum):
    """What follows an accident."""

    AGAIN = "again"
    """Ask for another slot."""
    REFUSE = "refuse"
    """Answer with the refusal."""
    LOST = "lost"
    LATE = "late"
    CANCEL = "cancel"


_AT_A_WORKER: Final[tuple[QueryStatus, ...]] = ("running", "streaming")

LOST: Final = frozenset({Accident.LINK_LOST, Accident.HUNG})
"""After these accidents only the worker knows whether the query runs."""

_VERDICTS: Final[dict[tuple[Accident, QueryStatus], Verdict]] = {
    **{(Accident.DEADLINE, status): Verdict.LATE for status in UNDER_WAY},
    **{(Accident.CANCELLED, status): Verdict.CANCEL for status in UNDER_WAY},
    **{(Accident.REFUSED, status): Verdict.REFUSE for status in UNDER_WAY},
    (Accident.NOTHING_DONE, "connecting"): Verdict.AGAIN,
    (Accident.NOTHING_DONE, "running"): Verdict.AGAIN,
    (Accident.NOTHING_DONE, "streaming"): Verdict.LOST,
    **{(accident, "connecting"): Verdict.AGAIN for accident in LOST},
    **{(accident, status): Verdict.LOST for accident in LOST for status in _AT_A_WORKER},
}


def after(accident: Accident, status: QueryStatus, *, idempotent: bool) -> Verdict:
    """Return what follows the accident for a query of this status."""
    if idempotent and status == "running" and accident in LOST:
        return Verdict.AGAIN
    verdict = _VERDICTS.get((accident, status))
    if verdict is None:
        raise InternalError(f"The accident {accident.value} cannot happen to a {status} query.")
    return verdict
