"""Replies to requests that are answered later, without an asyncio task that waits.

A shard has tens of thousands of them: offers that wait for tasks, tasks that wait to be persisted.
The part of the shard that holds a reply answers or refuses it once. `on_stop` tells that part when
the caller does not wait any more.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from maitred.errors import Cancelled, InternalError, MaitredError
from maitred.node.work import WorkConnection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from msgspec import Struct

    from maitred.logs import Logger


def node_fault() -> InternalError:
    """Return the error for a request at which the node failed; the log has the details."""
    return InternalError("The node failed at this request.", remedy="Its log says more.")


def _nothing() -> None:
    """Ignore that the caller has left."""


class DeferredReply:
    """The reply to a request that came over a connection, or from this shard itself."""

    __slots__ = ("on_recall", "on_stop")

    def __init__(self) -> None:
        self.on_recall: Callable[[], None] | None = None
        """Called when the caller cancels the request, if the cancellation has an answer of its own:
        because the caller has to know the outcome."""
        self.on_stop: Callable[[], object] = _nothing
        """Called when the caller stops waiting before there is an answer."""

    def _forget_holder(self) -> Callable[[], object]:
        """Drop both callbacks; return `on_stop`, which the caller of this method may have to call.

        The callbacks refer to the task or offer that waits, and that refers to this reply. The
        garbage collector does not follow references of tasks, so it would never free such a cycle.
        """
        on_stop, self.on_stop, self.on_recall = self.on_stop, _nothing, None
        return on_stop

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits for the answer."""
        raise NotImplementedError

    def answer(self, message: Struct) -> None:
        """Send the answer; without effect if the caller does not wait any more."""
        raise NotImplementedError

    def refuse(self, problem: MaitredError) -> None:
        """Answer with an error."""
        raise NotImplementedError

    @contextmanager
    def refused_on_error(self, log: Logger) -> Iterator[None]:
        """Refuse the request with the error that the block raises; log a fault of the node."""
        try:
            yield
        except MaitredError as problem:
            self.refuse(problem)
        except Exception:
            log.exception("request failed")
            self.refuse(node_fault())


class AnsweringConnection(WorkConnection, Protocol):
    """The connection over which a deferred reply is sent."""

    def answer(self, stream: int, opcode: int, message: Struct) -> None:
        """Answer a request of maitred's protocol."""

    def blame_ourselves(self, stream: int, problem: BaseException) -> None:
        """Log a fault of the node, and answer that the node failed at the request."""


class HeldWork(DeferredReply):
    """The reply to a request that came over a connection, which has it in its table of `Work`."""

    __slots__ = ("_connection", "_opcode", "_size", "_stream", "deadline")

    def __init__(
        self, connection: AnsweringConnection, stream: int, opcode: int, size: int, deadline: float
    ) -> None:
        super().__init__()
        self._connection = connection
        self._stream = stream
        self._opcode = opcode
        self._size = size
        self.deadline = deadline
        connection.work_begins(stream, self, size)

    @property
    def wanted(self) -> bool:
        return self._connection.under_way.get(self._stream) is self

    def answer(self, message: Struct) -> None:
        self._forget_holder()
        if self._connection.work_ends(self._stream, self, self._size):
            try:
                self._connection.answer(self._stream, self._opcode, message)
            except Exception as problem:  # noqa: BLE001 - the caller must get an answer
                self._connection.blame_ourselves(self._stream, problem)

    def refuse(self, problem: MaitredError) -> None:
        self._forget_holder()
        if self._connection.work_ends(self._stream, self, self._size):
            self._connection.refuse(self._stream, problem)

    def stop(self, reason: MaitredError | None) -> None:
        if not self._connection.work_ends(self._stream, self, self._size):
            return
        if reason is not None:
            self._connection.refuse(self._stream, reason)
        self._forget_holder()()


class HeldHere(DeferredReply):
    """The reply to a request of this shard to itself; `done` is called in a later loop turn."""

    __slots__ = ("_done", "_given_up", "_loop", "over")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hold: Callable[[], None],
        done: Callable[[Struct | MaitredError], None],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._done = done
        self._given_up = False
        self.over = False
        loop.call_soon(self._begin, hold)

    @property
    def wanted(self) -> bool:
        return not self.over

    def answer(self, message: Struct) -> None:
        self._end(message)

    def refuse(self, problem: MaitredError) -> None:
        self._end(problem)

    def give_up(self) -> None:
        """Stop waiting for the answer; `done` is not called."""
        self._given_up = True
        if not self.over:
            self.over = True
            self._forget_holder()()

    def recall(self) -> None:
        """Cancel the request; `done` is called, with an answer that was already on its way."""
        if self.over:
            return
        if self.on_recall is not None:
            self.on_recall()
        else:
            self.on_stop()
            self._end(Cancelled("The caller cancelled the request."))

    def _begin(self, hold: Callable[[], None]) -> None:
        if self.over:
            return
        try:
            hold()
        except MaitredError as problem:
            self.refuse(problem)
        except Exception:
            self.refuse(node_fault())
            raise

    def _end(self, outcome: Struct | MaitredError) -> None:
        self._forget_holder()
        if not self.over:
            self.over = True
            self._loop.call_soon(self._tell, outcome)

    def _tell(self, outcome: Struct | MaitredError) -> None:
        if not self._given_up:
            self._done(outcome)
