"""What a dispatcher has done for it, and what it is told: the whole edge of the pure layer.

A dispatcher gets events, each with the `now` at which it happened, and calls these methods. None of
them waits, and none answers by its result: what comes of it is another event, at once or later.
`client/query_gateway.py` carries them out with links, timers and requests to nodes; tests write
them down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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
    """Hears what a worker answers to one query: rows, then exactly one of the other three."""

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
    """Waits for a link to a worker. One of these is called, once."""

    def linked(self, link: Carrier, now: float) -> None:
        """The link is open."""

    def unreachable(self, now: float) -> None:
        """The worker cannot be dialled from here: the node has to relay."""

    def gone(self, why: str, now: float) -> None:
        """The worker does not exist any more."""


class NodeRequest(Protocol):
    """A request that waits at the node."""

    def take_back(self) -> None:
        """Have the node answer now: nothing depends on what it waits for any more."""


class Wakeup(Protocol):
    """A moment at which the shell will call the dispatcher."""

    def cancel(self) -> None:
        """Do not wake the dispatcher at that moment after all."""


class PartitionView(Protocol):
    """What is known of a queue's partitions, and which one is asked next."""

    @property
    def id(self) -> QueueId: ...
    @property
    def counts(self) -> PartitionCounts: ...
    def learn(self, told: Counts | None) -> None: ...
    def to_write(self, now: float) -> int: ...


class Effects(Protocol):
    """What a dispatcher asks of its surroundings."""

    @property
    def open_links(self) -> Mapping[tuple[bytes, str], Carrier]:
        """The open links to workers, by session and address."""

    def connect(self, allocation: Allocation, waiter: ConnectionWaiter, now: float) -> None:
        """Make a link to the worker, which has none, and tell the waiter."""

    def give_back(self, allocation: Allocation, now: float) -> None:
        """Tell the worker that no query needs its slot, if the worker can be reached."""

    def ask_node(
        self, message: AnyRequest, seconds: float, told: Told, *, patient: bool
    ) -> NodeRequest:
        """Send a request once; `told` hears the answer, or the error. Raises if it cannot be sent.

        One that is `patient` waits for a node that is away.
        """

    def tell_node(
        self, message: AnyRequest, seconds: float, told: Callable[[bool], None] | None = None
    ) -> None:
        """Send a request, again if need be, and tell whether it arrived."""

    def wake_at(self, moment: float, act: Act) -> Wakeup:
        """Call this at that moment."""

    def soon(self, act: Act) -> None:
        """Call this after the events that are at hand now."""

    def why_away(self, queue: QueueId) -> MaitredError | None:
        """Why the node of the queue's root cannot be asked, if there is no connection to it."""

    def payload_bytes_max(self) -> int:
        """The least of what the nodes accept as a payload; 0 while none has said."""

    def drained(self) -> None:
        """Every query has ended since the dispatcher drains."""

    def worker_hangs(self, worker: str, session: bytes) -> None:
        """Log that a worker does not answer."""
