"""A task in the memory of a partition, and the table of what can happen to it.

                  give               done, failed for good, revoked, expired
     READY ─────────────────▶ GIVEN ───────────────────────────────────────▶ OVER
     │ ▲ ▲ ◀───────────────── │ ▲                                             ▲
     │ │ │    give back       │ │ taken                                       │
     │ │ │                    │ AWAY (at the parent)                          │
     │ │ └── due ── WAITING ◀─┘ failed, lost: later                           │
     │ └─ read again                                                          │
     PARKED (only until it is written; then it is in the store alone)

What is not in the table did not happen: an event that comes too late finds no entry and changes
nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.records import Terms


Token = Any
"""Whatever the shell wants to have back when there is an answer for it."""


class State(IntEnum):
    """Where a task stands."""

    READY = 0
    """Waits for an offer."""
    AWAY = 1
    """Is at the parent partition, which may have an offer."""
    GIVEN = 2
    """Is at a worker."""
    WAITING = 3
    """Waits for its time."""
    PARKED = 4
    """Is in memory only until it is written: its turn comes when it is read again."""
    OVER = 5


class Event(IntEnum):
    """What can happen to a task."""

    GIVE = 0
    PASS_ON = 1
    TAKEN = 2
    COME_BACK = 3
    POSTPONE = 4
    DUE = 5
    UNPARK = 6
    END = 7


READY, AWAY, GIVEN, WAITING, PARKED, OVER = State
GIVE, PASS_ON, TAKEN, COME_BACK, POSTPONE, DUE, UNPARK, END = Event

AFTER: Final[dict[tuple[State, Event], State]] = {
    (READY, GIVE): GIVEN,
    (READY, PASS_ON): AWAY,
    (READY, END): OVER,
    (AWAY, TAKEN): GIVEN,
    (AWAY, COME_BACK): READY,
    (AWAY, END): OVER,
    (GIVEN, COME_BACK): READY,
    (GIVEN, POSTPONE): WAITING,
    (GIVEN, END): OVER,
    (WAITING, DUE): READY,
    (WAITING, END): OVER,
    (PARKED, UNPARK): READY,
    (PARKED, END): OVER,
}


class SegmentState:
    """What a partition remembers of a segment in the store."""

    __slots__ = ("finished", "first", "last", "left", "priority")

    def __init__(self, priority: int, first: int, last: int, left: int) -> None:
        self.priority = priority
        self.first = first
        self.last = last
        self.left = left
        """Tasks of it that are not over."""
        self.finished: list[int] = []
        """Those that are over and have no mark yet."""


class Ticket(Struct, eq=False):
    """A request that is answered when all its parts are safe."""

    token: Token
    left: int
    done: int = 0
    problem: MaitredError | None = None
    told: bool = False
    """Whether the request was answered before its last part was safe or refused."""

    def last_word(self, problem: MaitredError) -> MaitredError | None:
        """Return the answer when no part will be settled any more because of the problem."""
        return self.problem or (problem if self.left else None)


class Task(Struct, gc=False, eq=False):
    """One task. Times are the loop's; the partition translates to and from the wall clock.

    The garbage collector does not follow a task's references: with 200,000 tasks in memory, a full
    collection would stop the shard for 90 ms. So nothing frees a cycle through a task. `visit` and
    `ticket` refer to deferred replies, which drop their references when they are answered;
    `Partition.leave` clears both fields of the tasks that are left.
    """

    sequence: int
    priority: int
    terms: Terms
    payload: bytes
    added: float
    state: State
    ticket: Ticket | None = None
    """Who waits for it to be safe."""
    ready: float = 0.0
    """Since when it could have been run; whoever makes the task says so."""
    attempt: int = 0
    """Attempts that came to nothing; of a visitor, the number of the next one."""
    expires: float = 0.0
    due: float = 0.0
    reported: int = 0
    """The last attempt whose worker told that it failed: no second end of it counts."""
    failure: bytes = b""
    origin: int = -1
    """The partition that owns it, if that is another one: a visitor."""
    visit: Token = None
    """Of a visitor: whom to tell what became of it."""
    holder: bytes = b""
    """Which worker has it (`proofs.holder_of`); empty: none, or one that is not known."""
    proof: bytes = b""
    """What the holder shows; empty: not computed here, so it is computed when it is shown."""
    worker: str = ""
    given_at: float = 0.0
    lease_until: float = 0.0
    hold_until: float = 0.0
    place: int = 0
    """In its line."""
    revoked: bool = False
    called: bool = False
    """Whether it was called back from the parent."""
    # Where it is written down: in a segment, in a row of its own, or not yet.
    segment: SegmentState | None = None
    later_stored: bool = False
    writing: bool = False
    """Whether a commit that is under way has it."""

    def moves(self, event: Event) -> bool:
        """Let it happen, if it can."""
        after = AFTER.get((self.state, event))
        if after is None:
            return False
        self.state = after
        return True

    @property
    def stored(self) -> bool:
        """Whether the store has it."""
        return self.segment is not None or self.later_stored

    @property
    def may_have_begun(self) -> bool:
        """Whether a worker may have begun an attempt at it."""
        return self.attempt > 0 or self.state is GIVEN or self.state is AWAY
