"""A task in the memory of a partition, and the table of what can happen to it.

The table rules: code changes a task's state with `task.state = ON_END[task.state]` and in no other
way. A pair that is not in the table raises `InternalError`, and the shell then loads the partition
again from the store. An event that may come too late, such as the answer of a parent for a task
that is over by now, is told apart by its caller, which looks at the state first.

docs/architecture.md has the table as a diagram.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from maitred.errors import InternalError

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.records import Record, Terms
    from maitred.matching.task_ends import EndStatus


Token = Any
"""An object of the shell that names a request; the effect with the answer carries it back."""


class State(IntEnum):
    """The states of a task."""

    READY = 0
    """The task waits for an offer."""
    AWAY = 1
    """The task is at the parent partition, which may have an offer."""
    GIVEN = 2
    """The task is at a worker."""
    WAITING = 3
    """The task waits until it is due."""
    PARKED = 4
    """The task is in memory only until it is written, and is read again later."""
    OVER = 5


class TaskEvent(IntEnum):
    """The events of a task."""

    GIVE = 0
    """An offer takes it."""
    CLAIM = 1
    """A worker proves that it has the task, which this partition had not given out: an earlier
    owner of the partition had."""
    PASS_ON = 2
    """The task goes to the parent partition."""
    TAKE = 3
    """A worker took it at the parent, or may have."""
    COME_BACK = 4
    """The task returns without having begun."""
    POSTPONE = 5
    """An attempt failed, or its worker was lost."""
    DUE = 6
    """The task is due."""
    UNPARK = 7
    """All tasks before it in its line have been read."""
    END = 8
    """Done, failed for good, cancelled, expired or refused; of a visitor, its visit is over."""


READY, AWAY, GIVEN, WAITING, PARKED, OVER = State


class TaskTransitions(dict[State, State]):
    """The next state after one event, by the present state; raises `InternalError` for a state in
    which the event cannot happen."""

    __slots__ = ("event",)

    def __init__(self, event: TaskEvent, after: dict[State, State]) -> None:
        super().__init__(after)
        self.event = event

    def __missing__(self, state: State) -> State:
        raise InternalError(f"A task that is {state.name} got the event {self.event.name}.")


ON_GIVE: Final = TaskTransitions(TaskEvent.GIVE, {READY: GIVEN})
ON_CLAIM: Final = TaskTransitions(TaskEvent.CLAIM, {READY: GIVEN, WAITING: GIVEN})
ON_PASS_ON: Final = TaskTransitions(TaskEvent.PASS_ON, {READY: AWAY})
ON_TAKE: Final = TaskTransitions(TaskEvent.TAKE, {AWAY: GIVEN})
ON_COME_BACK: Final = TaskTransitions(TaskEvent.COME_BACK, {AWAY: READY, GIVEN: READY})
ON_POSTPONE: Final = TaskTransitions(TaskEvent.POSTPONE, {GIVEN: WAITING})
ON_DUE: Final = TaskTransitions(TaskEvent.DUE, {WAITING: READY})
ON_UNPARK: Final = TaskTransitions(TaskEvent.UNPARK, {PARKED: READY})
ON_END: Final = TaskTransitions(
    TaskEvent.END, {READY: OVER, AWAY: OVER, GIVEN: OVER, WAITING: OVER, PARKED: OVER}
)

TABLE: Final = (
    ON_GIVE,
    ON_CLAIM,
    ON_PASS_ON,
    ON_TAKE,
    ON_COME_BACK,
    ON_POSTPONE,
    ON_DUE,
    ON_UNPARK,
    ON_END,
)

BEGINNINGS: Final[dict[State, str]] = {
    READY: "added, read, visits",
    WAITING: "added with a delay, read, tried again",
    PARKED: "added behind tasks that are in the store alone",
}
"""The states in which a task comes into memory, and how it comes there."""


class SegmentState:
    """A segment in the store, as the partition remembers it."""

    __slots__ = ("first", "last", "left", "priority")

    def __init__(self, priority: int, first: int, last: int, left: int) -> None:
        self.priority = priority
        self.first = first
        self.last = last
        self.left = left
        """Tasks of the segment that are not over."""


class Ticket(Struct, eq=False):
    """A request that is answered when all its parts are safe."""

    token: Token
    left: int
    done: int = 0
    problem: MaitredError | None = None
    told: bool = False
    """Whether the request was answered before its last part was safe or refused."""
    first: int = -1
    """The lowest sequence number of the tasks that a producer adds."""
    tasks: int = 0
    results: list[bytes | None] | None = None
    """Results of these tasks that were done before the producer is answered, in the order of their
    sequence numbers: empty while there is none, None if the request is not one of a producer."""
    follows: list[tuple[int, float, int]] | None = None
    """What follows each failed attempt that a worker reports, as `Finished` has it. None if the
    request does not report attempts."""

    def last_word(self, problem: MaitredError) -> MaitredError | None:
        """Return the answer when no part will be settled any more because of the problem."""
        return self.problem or (problem if self.left else None)


class QueueTask(Struct, gc=False, eq=False):
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
    """Changed through the table only."""
    ticket: Ticket | None = None
    """The request of the producer, until the task is safe."""
    ready: float = 0.0
    """Since when it could have been run; set by the code that creates the task."""
    by: str = ""
    """User who added it, and the address from which it came."""
    attempt: int = 0
    """Attempts that failed; for a visitor, the number of the next attempt."""
    expires: float = 0.0
    due: float = 0.0
    reported: int = 0
    """The last attempt whose worker reported a failure: a second end of it does not count."""
    failure: bytes = b""
    origin: int = -1
    """The partition that owns a visitor; -1 for an own task."""
    visit: Token = None
    """The request of the child partition that sent a visitor."""
    holder: bytes = b""
    """The worker that has it (`attempt_proofs.holder_of`); empty: none, or an unknown one."""
    proof: bytes = b""
    """The proof of the holder; empty: not computed yet, so it is computed when one is shown."""
    worker: str = ""
    given_at: float = 0.0
    lease_until: float = 0.0
    hold_until: float = 0.0
    place: int = 0
    """Its position in its line."""
    revoked: bool = False
    called: bool = False
    """Whether it was called back from the parent."""
    past: bytes = b""
    """Notes about the attempts that are over (`task_history.past_attempts`)."""
    trace: bytes = b""
    """The trace context that the producer sent."""
    forwarded: bool = False
    """Whether the worker that has it waited at a parent partition."""
    # Once it is over.
    status: EndStatus = "done"
    ended: float = 0.0
    payload_gone: int = 0
    """Length of the payload, if it is no longer kept."""
    # Where it is stored: in a segment, in a row of its own, or not yet.
    segment: SegmentState | None = None
    later_stored: bool = False
    writing: bool = False
    """Whether the commit under way has it."""
    maybe_stored: bool = False
    """Whether the store may have it although it is neither `stored` nor `writing`: the task left a
    segment for a row that is not written yet, or a commit with it failed, which may have lost only
    its answer."""

    @property
    def stored(self) -> bool:
        """Whether the store has it."""
        return self.segment is not None or self.later_stored

    @property
    def may_have_begun(self) -> bool:
        """Whether a worker may have begun an attempt."""
        return self.attempt > 0 or self.state is GIVEN or self.state is AWAY


def recalled(record: Record, *, wall: float, now: float, state: State) -> QueueTask:
    """Return a task from its record. The wall clock is `wall` ahead of the loop's time."""
    # If the wall clock was set back, the task must not come from the future.
    added = min(record.added_at - wall, now)
    return QueueTask(
        record.sequence,
        record.priority,
        record.terms,
        record.payload,
        added,
        state,
        ready=added,
        attempt=record.attempt,
        expires=record.expires_at - wall if record.expires_at else 0.0,
        failure=record.failure,
        by=record.by,
        past=record.past,
        trace=record.trace,
    )
