"""A query's life, as two tables: which status may follow which, and what an accident means.

Accidents are what happens to a query against its plan: its worker refuses it, its link breaks, its
time is over, nobody wants it. What follows depends on how far it had come, because a query must not
run twice unless its caller said that this does no harm, and rows that a caller has are not taken
back. Whatever follows, it is one thing: an answer, another try, or nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

Status = Literal[
    "waiting", "running", "streaming", "done", "failed", "cancelled", "refused", "lost", "late"
]

UNDER_WAY: Final[frozenset[str]] = frozenset({"waiting", "running", "streaming"})

FOLLOWS: Final[dict[str, frozenset[str]]] = {
    "waiting": frozenset({"running", "cancelled", "refused", "lost", "late"}),
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
"""Which status may follow which. `running` begins when the query is sent to its worker; it waits
again if the worker says that nothing was begun, or if it may run elsewhere; one that was lost with
its worker before, and finds no other, is `lost`."""


class Stage(Enum):
    """How far a query has come."""

    WAITING = "waiting"
    """For a slot, or for a hook."""
    CONNECTING = "connecting"
    """It has a slot, and is not sent yet: the worker is being dialled."""
    SENT = "sent"
    """Whether it runs only the worker knows."""
    STREAMING = "streaming"
    """Rows of it were handed to the caller."""
    OVER = "over"


class Accident(Enum):
    """What may happen to it."""

    NOTHING_DONE = "nothing-done"
    """The worker, or the node, says that it was not begun and that another may take it."""
    REFUSED = "refused"
    """Somebody refuses it for what it is: nobody else would take it either."""
    LINK_LOST = "link-lost"
    HUNG = "hung"
    """The worker is connected, and silent."""
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


class Verdict(Enum):
    """What follows."""

    NOTHING = "nothing"
    AGAIN = "again"
    """Ask for another slot."""
    REFUSE = "refuse"
    """Answer with the refusal."""
    LOST = "lost"
    LATE = "late"
    CANCEL = "cancel"


LOST: Final = frozenset({Accident.LINK_LOST, Accident.HUNG})
"""After these only the worker knows whether the query runs."""

_ALWAYS: Final[dict[Accident, Verdict]] = {
    Accident.DEADLINE: Verdict.LATE,
    Accident.CANCELLED: Verdict.CANCEL,
    Accident.REFUSED: Verdict.REFUSE,
}


def after(accident: Accident, stage: Stage, *, idempotent: bool) -> Verdict:
    """What an accident means to a query at that stage."""
    if stage is Stage.OVER:
        return Verdict.NOTHING
    always = _ALWAYS.get(accident)
    if always is not None:
        return always
    if stage is Stage.WAITING:
        return Verdict.NOTHING  # it is in nobody's hands; whoever asks for its slot asks again
    if stage is Stage.CONNECTING:
        return Verdict.AGAIN
    if stage is Stage.SENT and (idempotent or accident not in LOST):
        return Verdict.AGAIN
    return Verdict.LOST
