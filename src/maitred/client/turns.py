"""A query's turn at a worker that its gateway picked: from the pick to the worker's last word.

It ends exactly once, on every path, and the policy is told how: with the answer, a refusal, or the
loss of the link. If whoever asked leaves before, the turn goes on without him: the worker is busy
until it says that it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.balancing.workers import Outcome
from maitred.errors import (
    AtCapacity,
    DeadlineExceeded,
    InvalidReservation,
    MaitredError,
    Overloaded,
    SlotTaken,
    Unavailable,
)
from maitred.protocol.messages import UNREADABLE
from maitred.protocol.seats import decode_seated
from maitred.protocol.tasks import DONE, FAILED, STOPPED

if TYPE_CHECKING:
    from maitred.balancing.workers import Dispatch
    from maitred.client.floor import Floor
    from maitred.client.roster import Subscription
    from maitred.client.running import Running
    from maitred.client.seats import Guest, SeatLink
    from maitred.protocol.seats import Seated

_OUTCOMES: Final = {DONE: Outcome.DONE, FAILED: Outcome.FAILED, STOPPED: Outcome.CANCELLED}


class Turn:
    """A query's way through a floor. Once whoever asked has left, it waits for the worker's last
    word in his place."""

    __slots__ = (
        "asked_the_node",
        "dispatch",
        "floor",
        "leaving",
        "link",
        "policy",
        "refused_by",
        "running",
        "subscription",
        "waits",
        "was_full",
    )

    def __init__(self, floor: Floor, running: Running, subscription: Subscription) -> None:
        self.floor = floor
        self.running = running
        self.subscription = subscription
        self.policy = floor.policy
        """Which one it was sent by; a queue may get another."""
        self.dispatch: Dispatch | None = None
        self.link: SeatLink | None = None
        """Set when it was sent."""
        self.refused_by: tuple[str, ...] = ()
        self.asked_the_node = False
        """Whether the node was asked for a slot, because nobody had room that we can send to."""
        self.waits = False
        """In the line."""
        self.leaving = Outcome.CANCELLED
        """How it ends if whoever asked leaves."""
        self.was_full = False
        """Whether the last worker that it was sent to had no room."""

    def __repr__(self) -> str:
        return f"<Turn of {self.running!r}, {self.dispatch!r}>"

    @property
    def in_flight(self) -> int:
        """What is counted to its worker, this one included."""
        return 0 if self.dispatch is None else self.dispatch.worker.in_flight

    def end(self, outcome: Outcome, limit: int | None = None) -> None:
        """Tell the policy; the first time counts."""
        dispatch, self.dispatch = self.dispatch, None
        if dispatch is not None:
            self.floor.ended(self, dispatch, outcome, limit)

    # What its worker says

    def answered(self, seated: Seated) -> None:
        """The last word."""
        dispatch, self.dispatch = self.dispatch, None
        if dispatch is not None:
            outcome = _OUTCOMES.get(seated.how, Outcome.LOST)
            self.floor.ended(self, dispatch, outcome, None, seated.load)

    def was_refused(self, problem: MaitredError) -> None:
        """The worker did not begin it."""
        dispatch = self.dispatch
        if dispatch is None:
            return
        name = dispatch.worker.name
        if isinstance(problem, Overloaded | SlotTaken):
            self.refused_by += (name,)
            self.was_full = True
            self.floor.directing.refused_by_workers += 1
            self.end(Outcome.REFUSED, problem.limit if isinstance(problem, AtCapacity) else None)
        elif isinstance(problem, Unavailable):  # it is leaving, or does not know us
            self.end(Outcome.CANCELLED)
            self.floor.away(name)
            if isinstance(problem, InvalidReservation):
                self.subscription.refresh()
        elif isinstance(problem, DeadlineExceeded):
            self.end(Outcome.CANCELLED)
        else:  # for what it is, as every other would
            self.end(Outcome.FAILED)

    def stop(self, stream: int, guest: Guest) -> None:
        """Whoever asked has left; the worker is told, and is busy until it says that it is not."""
        if self.link is not None:
            self.link.stop(stream, guest, self)

    # As the guest of a link, after that

    def rows_came(self, chunk: bytes) -> None:
        """Nobody takes them."""

    def seated(self, body: bytes) -> None:
        try:
            seated = decode_seated(body)
        except UNREADABLE:
            self.end(Outcome.LOST)
            return
        if seated.how == STOPPED or self.leaving is Outcome.LOST:
            dispatch, self.dispatch = self.dispatch, None
            if dispatch is not None:
                self.floor.ended(self, dispatch, self.leaving, None, seated.load)
        else:
            self.answered(seated)

    def refused(self, problem: MaitredError) -> None:
        self.was_refused(problem)

    def lost(self, why: str, *, hung: bool) -> None:  # noqa: ARG002
        self.end(Outcome.LOST)
