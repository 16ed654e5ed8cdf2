"""One request on its way: waiting in a line, sent on a stream, or answered.

A connection's table of streams holds calls. Whatever happens to a call ends it exactly once: an
`AwaitedCall` resolves a future, a `ToldCall` calls a function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maitred.errors import ConnectionLost, DeadlineExceeded, Unavailable
from maitred.protocol.requests import PartitionRequest

if TYPE_CHECKING:
    import asyncio
    from collections import OrderedDict
    from collections.abc import Callable

    from maitred.client.statistics import ShardCounts
    from maitred.client.waiting_room import WaitingRoom
    from maitred.errors import MaitredError, NodeUnreachable
    from maitred.protocol.description import Description
    from maitred.protocol.frames import Frame
    from maitred.protocol.messages import AnyRequest
    from maitred.wire.caller import Receiver


class CallConnection(Protocol):
    """The part of a connection that is used through the calls sent on it."""

    @property
    def arrived_at(self) -> float:
        """The loop's time at which bytes last arrived from the node."""

    @property
    def has_ended(self) -> bool:
        """Whether the connection is gone."""

    @property
    def counts(self) -> ShardCounts:
        """The counters of the connection's shard."""

    def probe(self) -> None:
        """Ask the node for a sign of life; without one, the connection closes."""

    def why_lost(self, problem: Exception | None) -> str:
        """Return the reason for the connection's end, without a full stop."""

    def take_back(self, call: Call) -> None:
        """Tell the node to answer now; the answer still goes to the call."""

    def give_up(self, stream: int, receiver: Receiver) -> bool:
        """Abandon a request and tell the node to stop; return False if it was answered."""


class CallNode(Protocol):
    """The part of a node's pool of connections that is used through the calls for that node."""

    @property
    def name(self) -> str:
        """The node's host and port, as the address spells them."""

    @property
    def awaits_takeover(self) -> bool:
        """Whether the node does not answer, and other members of the cluster are about to take over
        its partitions."""

    @property
    def description(self) -> Description | None:
        """The node's last description of itself; None before the first handshake."""

    @property
    def closed(self) -> bool:
        """Whether the node has left the cluster, or the client is closed."""

    @property
    def line(self) -> OrderedDict[Call, None]:
        """Calls that wait for any connection to the node."""

    @property
    def problem(self) -> MaitredError | None:
        """Why the last attempt at a connection failed; None after a successful one."""

    def because(self) -> str:
        """Return the last reason for having no connection, in parentheses."""

    def counts(self, shard: int) -> ShardCounts:
        """Return the counters of the shard."""

    def submit(self, call: Call, now: float) -> None:
        """Send the call, or queue it; raises if neither is possible."""

    def is_silent(self, shard: int) -> bool:
        """Return whether calls for the shard wait for a sign of life."""

    def is_away(self, shard: int, now: float, seconds: float | None = None) -> bool:
        """Return whether the shard has been without connection for longer than `seconds`; by
        default, for longer than a restart takes."""

    def unreachable(self, shard: int, now: float, said: str = "") -> NodeUnreachable:
        """Return the error for a request to a shard that is away."""


class Call:
    """A request, sent once at most; a retry is another call."""

    __slots__ = (
        "connection",
        "deadline",
        "line",
        "message",
        "pool",
        "room",
        "sent_at",
        "shard",
        "stream",
    )

    room: WaitingRoom
    """Where it waits; set while `line` is."""

    grace_seconds = 0.0
    """How much longer we wait for the answer than the node was told to take."""

    patient = False
    """Whether it waits for a node that is away until its deadline, instead of being refused."""

    def __init__(
        self,
        message: AnyRequest,
        deadline: float,
        pool: CallNode | None = None,
    ) -> None:
        self.message = message
        self.deadline = deadline
        self.pool = pool
        """The node to send it to; if the caller names none, the router chooses."""
        self.shard = -1
        """The shard of that node that owns it; -1 while the client does not know."""
        self.line: OrderedDict[Call, None] | None = None
        self.connection: CallConnection | None = None
        self.stream = -1
        self.sent_at = 0.0

    @property
    def awaits_takeover(self) -> bool:
        """Whether other members of the cluster are about to take over its partition, because the
        owner does not answer."""
        return (
            self.pool is not None
            and isinstance(self.message, PartitionRequest)
            and self.pool.awaits_takeover
        )

    # Waiting

    def wait_in(self, line: OrderedDict[Call, None], room: WaitingRoom) -> None:
        """Raises `Overloaded` if too many wait."""
        room.enter(self)
        self.room = room
        self.line = line
        line[self] = None

    def leave(self) -> None:
        """Its turn has come; it is out of the line already."""
        self.line = None
        self.room.leave(self)

    def stop_waiting(self) -> None:
        """Out of the line, wherever it stood."""
        if self.line is not None:
            self.line.pop(self, None)
            self.leave()

    def waited_too_long(self) -> None:
        """Its time is over, and it was never sent."""
        is_in_turn = self.pool is None or self.line is not self.pool.line
        self.stop_waiting()
        if self.pool is not None and is_in_turn and self.pool.is_silent(self.shard):
            self.fail(
                Unavailable(
                    f"{self.pool.name} does not answer, and the cluster has not declared it dead "
                    "in time. The request was not sent.",
                    remedy="Try again, with more time: the other nodes take over what it owns.",
                )
            )
        elif is_in_turn or self.pool is None:
            self.fail(
                DeadlineExceeded(
                    "The time was over before it was the request's turn; it was not sent.",
                    remedy="Give it more time, or ask less at once.",
                )
            )
        else:
            self.fail(
                Unavailable(
                    f"There was no connection to {self.pool.name} in time{self.pool.because()}. "
                    "The request was not sent.",
                    remedy=None if self.pool.problem is None else self.pool.problem.remedy,
                )
            )

    # What becomes of it (see `wire.caller.Receiver`)

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or has failed."""
        raise NotImplementedError

    def answered(self, frame: Frame) -> None:
        """End it with this answer, unless it is over."""
        raise NotImplementedError

    def fail(self, problem: Exception) -> None:
        """End it with this error, unless it is over."""
        raise NotImplementedError

    def expired(self) -> None:
        connection = self.connection
        if connection is not None and connection.arrived_at <= self.sent_at:
            connection.probe()
        name = self.pool.name if self.pool is not None else "the node"
        self.fail(DeadlineExceeded(f"{name} did not answer in time. It has been told to stop."))

    def lost(self, problem: Exception | None) -> None:
        if self.is_over:
            return
        why = self.connection.why_lost(problem) if self.connection is not None else "it is gone"
        name = self.pool.name if self.pool is not None else "the node"
        self.fail(
            ConnectionLost(
                f"The connection to {name} was lost before the answer came: {why}. "
                "Whether the request was done is not known."
            )
        )

    def give_up(self) -> None:
        """Stop: the caller left. If the call was sent, the node is told."""
        self.stop_waiting()
        if self.connection is not None:
            self.connection.give_up(self.stream, self)


class AwaitedCall(Call):
    """A call that resolves a future."""

    __slots__ = ("future",)

    def __init__(
        self,
        message: AnyRequest,
        deadline: float,
        future: asyncio.Future[Frame],
        pool: CallNode | None = None,
    ) -> None:
        super().__init__(message, deadline, pool)
        self.future = future

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def answered(self, frame: Frame) -> None:
        if not self.future.done():
            self.future.set_result(frame)

    def fail(self, problem: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(problem)


class PatientCall(AwaitedCall):
    """A call that waits for a node that is away."""

    __slots__ = ()

    patient = True


class ToldCall(Call):
    """A call that calls a function when it ends, in the same turn of the loop."""

    __slots__ = ("_told", "patient")

    def __init__(
        self,
        message: AnyRequest,
        deadline: float,
        told: Callable[[Call, Frame | Exception], None],
        *,
        patient: bool,
    ) -> None:
        super().__init__(message, deadline)
        self.patient = patient
        self._told: Callable[[Call, Frame | Exception], None] | None = told

    @property
    def is_over(self) -> bool:
        return self._told is None

    def answered(self, frame: Frame) -> None:
        self._tell(frame)

    def fail(self, problem: Exception) -> None:
        self._tell(problem)

    def _tell(self, outcome: Frame | Exception) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(self, outcome)
