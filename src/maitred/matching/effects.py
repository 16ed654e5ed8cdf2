"""What a partition wants done: values that the shell carries out, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec import Struct, msgpack

from maitred.matching.records import UNREADABLE, RowDamagedError, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.errors import MaitredError
    from maitred.matching.backlog import Reading
    from maitred.matching.offers import WaitingOffer
    from maitred.matching.presence import Attendance
    from maitred.matching.records import Damaged, Later
    from maitred.matching.rosters import IssuedPass
    from maitred.matching.shared_supplies import SharedOffer
    from maitred.matching.slot_requests import AllocatedSlot, SlotRequest
    from maitred.matching.stored_ends import EndsSearch
    from maitred.matching.task import QueueTask, Ticket, Token

EndStatus = Literal["done", "failed", "cancelled", "expired"]

EndedBody = tuple[EndStatus, int, bytes]
"""What is kept of a task that is over: status, attempts, body."""

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(tuple[EndStatus, int, bytes]).decode


def encode_ended(ended: EndedBody) -> bytes:
    """Serialise what is kept of a task that is over."""
    return seal(_encode(ended))


def decode_ended(body: bytes, *, trusting: bool = False) -> EndedBody:
    """Read what was kept of a task; raises `RowDamagedError`."""
    try:
        return _decode(unseal(body, trusting=trusting))
    except UNREADABLE as problem:
        raise RowDamagedError(f"It is not what was written: {problem}.") from None


class Ended(Struct, frozen=True, gc=False):
    """What came of a task."""

    status: EndStatus
    attempts: int
    body: bytes
    until: float
    """When it may be forgotten."""
    stored: bool = False
    """Whether the store has it as well, or gets it with the end of the task."""


class Foreign(NamedTuple):
    """Another partition's task, on its way from a parent to a child's worker."""

    partition: int
    sequence: int
    attempt: int
    proof: bytes
    timeout: float
    payload: bytes
    waited: float


class Give(NamedTuple):
    """Answer the offer with these tasks of ours and of others."""

    offer: WaitingOffer
    tasks: list[QueueTask]
    foreign: list[Foreign]
    reserved: Sequence[AllocatedSlot] = ()
    """Slots that queries will take."""
    reserved_above: Sequence[Any] = ()
    """The same, as the parent has put it."""


class NothingFor(NamedTuple):
    """The offer's time is up: answer it without a task."""

    offer: WaitingOffer


class NothingForShared(NamedTuple):
    """Answer the shared offer without a task: its worker is not heard of any more."""

    shared: SharedOffer


class Settle(NamedTuple):
    """Answer the request: all its parts are safe, or refused with `problem`."""

    ticket: Ticket


class PassOffer(NamedTuple):
    """Send it to the parent; it keeps listening here."""

    offer: WaitingOffer


class RecallOffer(NamedTuple):
    """It is answered: the parent need not look any more."""

    offer: WaitingOffer


class PassTask(NamedTuple):
    """Send it to the parent, which may have an offer."""

    task: QueueTask


class RecallTask(NamedTuple):
    """Ask the parent to send it back, unless somebody has it already."""

    task: QueueTask


class AllocateSlot(NamedTuple):
    """Answer a gateway with these slots of ours, and those that the parent had."""

    request: SlotRequest
    reserved: Sequence[AllocatedSlot]
    above: Sequence[Any] = ()


class RefuseSlotRequest(NamedTuple):
    """There is no slot for a gateway, and this is why."""

    request: SlotRequest
    problem: MaitredError


class PassSlotRequest(NamedTuple):
    """Send it to the parent; from now on it waits there."""

    request: SlotRequest


class RecallSlotRequest(NamedTuple):
    """The parent need not look for a slot any more."""

    request: SlotRequest


class AnswerAttend(NamedTuple):
    """Tell a worker that attends what is wanted of it, and who may come without a reservation."""

    token: Token
    order: Literal["", "offline", "online"]
    passes: Sequence[IssuedPass] = ()
    best: float | None = None
    """Share of good answers among the other workers; None: nothing is said of it."""


class AnswerSubscribe(NamedTuple):
    """Tell a gateway who serves the queue, and what to show to them."""

    token: Token
    user: str
    version: int
    members: Sequence[tuple[Attendance, bytes]]


class RefuseSubscribe(NamedTuple):
    """Tell a gateway why it hears nothing."""

    token: Token
    problem: MaitredError


class VisitorTaken(NamedTuple):
    """A child's task has found a worker here."""

    task: QueueTask
    holder: bytes
    worker: str


class VisitorUnwanted(NamedTuple):
    """Nobody here wanted a child's task in time."""

    task: QueueTask


class VisitorLost(NamedTuple):
    """Nobody knows what became of a child's task further up."""

    task: QueueTask


class GiveBack(NamedTuple):
    """Tell the owner of this task that it did not reach anybody."""

    task: Foreign
    session: bytes
    user: str
    """The user of the worker for which the parent took the task."""


class Tell(NamedTuple):
    """Answer who waits for the end of a task."""

    token: Token
    ended: Ended


class RefuseToTell(NamedTuple):
    """Tell who waits for the end of a task that the store does not confirm it."""

    token: Token
    problem: MaitredError


class AskAgain(NamedTuple):
    """Look once more for a task that somebody waits for: the row it may be in was set aside."""

    token: Token
    sequence: int


class SetAside(NamedTuple):
    """Count and log that a row cannot be read."""

    row: Damaged


class Beat(NamedTuple):
    """Answer a heartbeat."""

    token: Token
    lost: list[int]
    revoked: list[int]


class Unproven(NamedTuple):
    """Count and log that a caller spoke of attempts without proving that it was given them."""

    holder: bytes
    message: Literal["FINISH", "HEARTBEAT"]
    attempts: int
    """How many of the message were refused."""


class NotKept(NamedTuple):
    """Log that the store has no room for a result, which stays in memory, or that a failure was
    cut."""

    what: Literal["result", "failure"]
    sequence: int
    size: int
    """Bytes of the result or the failure."""


class Read(NamedTuple):
    """Read segments, and say what there was."""

    reading: Reading


class FindEnds(NamedTuple):
    """Look in the store for the tasks of ends that are not in memory, and say what there was."""

    search: EndsSearch


class ReadLater(NamedTuple):
    """Read the tasks that are due before that moment, and say what there was."""

    before: float
    most: int
    most_bytes: int
    """Of bodies: as few are read as reach this, or that many tasks."""

    def is_all(self, found: Sequence[Later]) -> bool:
        """Whether the store had no more: what was found reaches neither end."""
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
    | AskAgain
    | SetAside
    | Beat
    | Unproven
    | NotKept
    | Read
    | FindEnds
    | ReadLater
)
