"""A request that is answered when there is an answer, without a task that waits for it.

A shard holds ten thousands of them: offers that wait for tasks, tasks that wait to be on disk. Who
holds one answers it, or refuses it, once; if nobody waits for the answer any more, the holder is
told with `on_stop`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from maitred.errors import Cancelled, InternalError, MaitredError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from msgspec import Struct

    from maitred.logs import Logger
    from maitred.node.accepted import Accepted


def node_fault() -> InternalError:
    """Return the error for a request at which the node failed; the log has the details."""
    return InternalError("The node failed at this request.", remedy="Its log says more.")


def _nothing() -> None:
    """Ignore that the caller has left."""


class DeferredReply:
    """The answer that a request waits for, over a connection or within this process."""

    __slots__ = ("on_recall", "on_stop")

    def __init__(self) -> None:
        self.on_recall: Callable[[], None] | None = None
        """Called when the caller takes it back, if that too is answered by the holder: because the
        caller has to know what became of it."""
        self.on_stop: Callable[[], object] = _nothing
        """Called when nobody waits any more, before an answer could be given."""

    def _forget_holder(self) -> Callable[[], object]:
        """Drop both callbacks; return `on_stop` for a caller that has yet to call it.

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
        """Give the answer; it has no effect if the caller does not wait any more."""
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


class HeldWork(DeferredReply):
    """A request that came over a connection; `Work` of its table."""

    __slots__ = ("_connection", "_opcode", "_size", "_stream", "deadline")

    def __init__(
        self, connection: Accepted, stream: int, opcode: int, size: int, deadline: float
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
    """A request that this shard asks of itself; `done` is called in a later turn of the loop."""

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
        """The one who asked does not wait any more."""
        self._given_up = True
        if not self.over:
            self.over = True
            self._forget_holder()()

    def recall(self) -> None:
        """The answer is not needed, but if it is on its way it is wanted."""
        if self.over:
            return
        if self.on_recall is not None:
            self.on_recall()
        else:
            self.on_stop()
            self._end(Cancelled("The caller took the request back."))

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
