"""Effects: requests of a partition for I/O, which its driver carries out in their order.

A partition decides without I/O; `maitred.node.partition_driver` looks up what to do by the type of
the effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.errors import MaitredError
    from maitred.matching.attendance import Attendance
    from maitred.matching.backlog import Reading
    from maitred.matching.records import Damaged, Later
    from maitred.matching.sighted_task import SightedTask
    from maitred.matching.slots import AllocatedSlot, SharedOffer, SlotRequest, WaitingOffer
    from maitred.matching.subscribers import IssuedPass
    from maitred.matching.task import QueueTask, Ticket, Token
    from maitred.matching.task_ends import Ended
    from maitred.matching.task_searches import TaskSearch

Revocation = Literal["cancelled", "cancelling", "over"]
"""What a caller hears that cancels a task; "cancelling": a worker has it, and is told to stop."""


class Foreign(NamedTuple):
    """A task of another partition, on its way from the parent to a worker of the child."""

    partition: int
    sequence: int
    attempt: int
    proof: bytes
    timeout: float
    payload: bytes
    waited: float
    trace: bytes = b""


class Give(NamedTuple):
    """Answer the offer with tasks of this partition and of others, and with reservations."""

    offer: WaitingOffer
    tasks: list[QueueTask]
    foreign: list[Foreign]
    reserved: Sequence[AllocatedSlot] = ()
    """Slots of the offer that this partition has reserved for queries."""
    reserved_above: Sequence[Any] = ()
    """Reservations that the parent has made, as its answer has them."""


class NothingFor(NamedTuple):
    """Answer the offer without a task, because its time is up or the partition stops."""

    offer: WaitingOffer


class NothingForShared(NamedTuple):
    """Answer the shared offer without a task, because its worker is suspected to be gone."""

    shared: SharedOffer


class Settle(NamedTuple):
    """Answer the request of the ticket: its tasks are safe, or refused for its `problem`."""

    ticket: Ticket


class PassOffer(NamedTuple):
    """Send the offer to the parent; it stays open here, too."""

    offer: WaitingOffer


class RecallOffer(NamedTuple):
    """Recall the offer from the parent, because it was answered here."""

    offer: WaitingOffer


class PassTask(NamedTuple):
    """Send the task to the parent, which may have an offer for it."""

    task: QueueTask


class RecallTask(NamedTuple):
    """Recall the task from the parent, unless a worker has it already."""

    task: QueueTask


class AllocateSlot(NamedTuple):
    """Answer a gateway with slots of this partition, and with those that the parent allocated."""

    request: SlotRequest
    reserved: Sequence[AllocatedSlot]
    above: Sequence[Any] = ()


class RefuseSlotRequest(NamedTuple):
    """Refuse a gateway a slot."""

    request: SlotRequest
    problem: MaitredError


class PassSlotRequest(NamedTuple):
    """Send the slot request to the parent, where it waits from now on."""

    request: SlotRequest


class RecallSlotRequest(NamedTuple):
    """Withdraw the slot request from the parent."""

    request: SlotRequest


class AnswerAttend(NamedTuple):
    """Answer an attending worker: whether to go offline or online, and which gateways may send
    queries without a reservation."""

    token: Token
    order: Literal["", "offline", "online"]
    passes: Sequence[IssuedPass] = ()
    best: float | None = None
    """Share of good answers among the other workers; None leaves it out of the answer."""


class AnswerSubscribe(NamedTuple):
    """Answer a subscribed gateway with the workers of the queue and a pass for each."""

    token: Token
    user: str
    version: int
    members: Sequence[tuple[Attendance, bytes]]


class RefuseSubscribe(NamedTuple):
    """Refuse the subscription of a gateway."""

    token: Token
    problem: MaitredError


class VisitorTaken(NamedTuple):
    """Tell the child which worker has its task."""

    task: QueueTask
    holder: bytes
    worker: str


class VisitorUnwanted(NamedTuple):
    """Tell the child that its task found no worker here."""

    task: QueueTask


class VisitorLost(NamedTuple):
    """Tell the child that its task was lost further up, where a worker may have got it."""

    task: QueueTask


class GiveBack(NamedTuple):
    """Return a task to its owner, because its offer was answered before the task arrived."""

    task: Foreign
    session: bytes
    user: str
    """The user of the worker for which the parent took the task."""


class Tell(NamedTuple):
    """Answer a caller that waits for the end of a task."""

    token: Token
    ended: Ended


class RefuseToTell(NamedTuple):
    """Refuse a caller that waits for the end of a task, or cancels one."""

    token: Token
    problem: MaitredError


class TellRevoked(NamedTuple):
    """Answer a caller that cancels a task."""

    token: Token
    state: Revocation


class TellSighting(NamedTuple):
    """Answer an operator who asks for one task."""

    token: Token
    sighting: SightedTask


class SetAside(NamedTuple):
    """Count and log a row that cannot be read and was set aside."""

    row: Damaged


class Beat(NamedTuple):
    """Answer a heartbeat with the attempts that were lost or revoked."""

    token: Token
    lost: list[int]
    revoked: list[int]


class Buried(NamedTuple):
    """Log a task that became a dead letter."""

    sequence: int
    attempts: int
    failure: bytes
    """The encoded failure of the last attempt."""


class LeasesEnded(NamedTuple):
    """Log the tasks of a worker whose leases ended without a heartbeat."""

    holder: bytes
    worker: str
    tasks: int


class WorkerGone(NamedTuple):
    """Log a worker that attended and was not heard of any more."""

    session: bytes
    worker: str
    orderly: bool
    """Whether it said before that it stops."""


class WorkerBack(NamedTuple):
    """Log a worker that attends again after it was gone."""

    session: bytes
    worker: str
    seconds: float
    """How long it was away."""


class Unproven(NamedTuple):
    """Count and log attempts that a caller named without proof that it was given them."""

    holder: bytes
    message: Literal["FINISH", "HEARTBEAT"]
    attempts: int
    """How many attempts of the message were refused."""


class NotKept(NamedTuple):
    """Log a result that stays in memory, because the store has no room for it within the quotas, or
    a failure that was cut."""

    what: Literal["result", "failure"]
    sequence: int
    size: int
    """Size of the result or the failure, in bytes."""


class Read(NamedTuple):
    """Read segments of the backlog, and report them with `StoreReplies.segments_read`."""

    reading: Reading


class LookUp(NamedTuple):
    """Read the rows of one task, and report them with `StoredTasks.found` or `not_read`."""

    search: TaskSearch


class ReadLater(NamedTuple):
    """Read the delayed tasks that are due before `before`, and report them with
    `StoreReplies.later_read`."""

    before: float
    most: int
    most_bytes: int
    """Bytes of bodies after which to stop reading, as after `most` tasks."""

    def is_all(self, found: Sequence[Later]) -> bool:
        """Return whether the store had no more: what was found reaches neither limit."""
        return len(found) < self.most and sum(len(one.body) for one in found) < self.most_bytes


Effect = (
    Give
    | NothingFor
    | NothingForShared
    | Settle
    | PassOffer
    | RecallOffer
    | PassTask
    | RecallTask
    | AllocateSlot
    | RefuseSlotRequest
    | PassSlotRequest
    | RecallSlotRequest
    | AnswerAttend
    | AnswerSubscribe
    | RefuseSubscribe
    | VisitorTaken
    | VisitorUnwanted
    | VisitorLost
    | GiveBack
    | Tell
    | RefuseToTell
    | TellRevoked
    | TellSighting
    | SetAside
    | Beat
    | Buried
    | LeasesEnded
    | WorkerGone
    | WorkerBack
    | Unproven
    | NotKept
    | Read
    | LookUp
    | ReadLater
)
