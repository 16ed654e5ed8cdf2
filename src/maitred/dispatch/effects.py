"""The interface between a dispatcher, which is pure, and the shell that does its I/O.

A dispatcher gets events, each with the `now` at which it happened, and calls the methods of
`Effects`. None of them waits: the outcome is another event, at once or later.
`client/query_gateway.py` implements them with links, timers and requests to nodes; tests record
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maitred.errors import MaitredError
    from maitred.protocol.messages import AnyAnswer, AnyRequest
    from maitred.protocol.queries import Allocation
    from maitred.protocol.tasks import Counts
    from maitred.routing.counts import PartitionCounts
    from maitred.routing.names import QueueId

    Told = Callable[[AnyAnswer | MaitredError, float], None]
    Act = Callable[[float], None]


class AnswerReceiver(Protocol):
    """Receives a worker's answer to one query: rows, then exactly one of the other three."""

    def rows_came(self, chunk: bytes, now: float) -> None:
        """Rows of a stream arrived."""

    def finished(self, body: bytes, now: float) -> None:
        """The query ended; the body is a `QueryEnd`."""

    def refused(self, problem: MaitredError, now: float) -> None:
        """The query was not begun."""

    def lost(self, why: str, now: float, *, hung: bool) -> None:
        """The connection ended, and the answer with it."""


class Carrier(Protocol):
    """Carries a query to its worker and the answer back: a link to the worker, or the node that
    relays."""

    @property
    def relays(self) -> bool:
        """Whether the node relays the query."""

    @property
    def frame_bytes(self) -> int:
        """Largest body that the worker accepts."""

    def run(self, receiver: AnswerReceiver, body: bytes, now: float) -> int:
        """Send a query and return its stream, or raise that nothing was sent."""

    def stop(
        self,
        stream: int,
        receiver: AnswerReceiver,
        now: float,
        heir: AnswerReceiver | None = None,
    ) -> None:
        """Have the worker stop, because the caller left. The heir receives the worker's last word
        in place of the receiver."""

    def taken(self, stream: int, size: int, now: float) -> None:
        """The caller took this many bytes of rows, so the worker may send as many more."""

    def release(self, token: bytes) -> None:
        """Tell the worker that this reservation will not be used."""


class ConnectionWaiter(Protocol):
    """Waits for a link to a worker. One of its methods is called, once."""

    def linked(self, link: Carrier, now: float) -> None:
        """The link is open."""

    def unreachable(self, now: float) -> None:
        """The gateway cannot dial the worker: the node has to relay."""

    def gone(self, why: str, now: float) -> None:
        """The worker does not exist any more."""


class NodeRequest(Protocol):
    """A long poll at the node."""

    def take_back(self) -> None:
        """Have the node answer now: the gateway does not need the answer any more."""


class Wakeup(Protocol):
    """A moment at which the shell will call the dispatcher."""

    def cancel(self) -> None:
        """Cancel the call."""


class PartitionView(Protocol):
    """A queue's partition counts, and the choice of the partition for the next request."""

    @property
    def id(self) -> QueueId: ...
    @property
    def counts(self) -> PartitionCounts: ...
    def learn(self, told: Counts | None) -> None: ...
    def to_write(self, now: float) -> int: ...


class Effects(Protocol):
    """The I/O that a dispatcher asks for."""

    @property
    def open_links(self) -> Mapping[tuple[bytes, str], Carrier]:
        """The open links to workers, by session and address."""

    def connect(self, allocation: Allocation, waiter: ConnectionWaiter, now: float) -> None:
        """Make a link to the worker, which has none, and tell the waiter."""

    def give_back(self, allocation: Allocation, now: float) -> None:
        """Tell the worker that no query needs its slot, if the worker can be reached."""

    def ask_node(
        self,
        message: AnyRequest,
        seconds: float,
        told: Told,
        *,
        patient: bool,
        first: Any = None,  # noqa: ANN401 - what an earlier call has returned
    ) -> NodeRequest:
        """Send a request once; `told` gets the answer, or the error. Raises if it cannot be sent.

        A `patient` request waits for a node that is away. One that follows a `first` request goes
        to the shard that this one was sent to.
        """

    def tell_node(
        self, message: AnyRequest, seconds: float, told: Callable[[bool], None] | None = None
    ) -> None:
        """Send a request, again if need be; `told` gets whether it arrived."""

    def wake_at(self, moment: float, act: Act) -> Wakeup:
        """Call `act` at that moment."""

    def soon(self, act: Act) -> None:
        """Call `act` after the events of this turn of the loop."""

    def why_away(self, queue: QueueId) -> MaitredError | None:
        """Return why the node of the queue's root cannot be asked; None if it is connected."""

    def payload_bytes_max(self) -> int:
        """Return the smallest payload limit of the nodes; 0 before any node has told its limit."""

    def drained(self) -> None:
        """Hear that every query of a draining dispatcher has ended."""

    def worker_hangs(self, worker: str, session: bytes) -> None:
        """Log that a worker does not answer."""
