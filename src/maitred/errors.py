"""The one taxonomy of errors, for the library, the command line and every door.

An error has a code that programs may compare, a plain sentence for people and, where one exists,
a remedy. Codes are part of the interface: they are added, never renamed. And it has an `outcome`,
which says what became of the request: a program that hears `nothing` may send it again.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

RequestOutcome = Literal["nothing", "unknown", "over"]


def printable(text: str) -> str:
    """Return text that somebody else wrote with its control characters escaped, so that it can
    neither command the terminal that shows it nor pass for another line of a log."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


class MaitredError(Exception):
    """Whatever maitred refuses or fails at; catch this to catch them all."""

    code: ClassVar[str] = "error"
    outcome: ClassVar[RequestOutcome] = "nothing"
    """What became of the request: `nothing` was done; it is `unknown` whether it was done, wholly
    or in part; or it was done and is `over`, and the error says how it ended."""

    def __init__(self, sentence: str, *, remedy: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}" if self.remedy else self.sentence


class InvalidArgument(MaitredError, ValueError):
    """The caller gave something that can never be right."""

    code = "invalid-argument"


class InvalidName(InvalidArgument):
    """A namespace, queue or host name that is empty, too long, or would make a key ambiguous."""

    code = "invalid-name"


class InvalidPartition(InvalidArgument):
    """A partition number, count, batch size or tree degree out of its range."""

    code = "invalid-partition"


class UnsafePartitionChange(InvalidArgument):
    """A change of partition counts that could strand tasks."""

    code = "unsafe-partition-change"


class InvalidGradualChange(InvalidArgument):
    """A gradual change whose times or values make no sense."""

    code = "invalid-gradual-change"


class InvalidShards(InvalidArgument):
    """A shard count or ignore_msb out of its range."""

    code = "invalid-shards"


class UnknownChoice(InvalidArgument):
    """A name that is in no list of choices; the sentence names the nearest one that is."""

    code = "unknown-choice"

    @classmethod
    def named(cls, what: str, name: str, known: Iterable[str]) -> Self:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of: {', '.join(names)}."
        return cls(f"There is no {what} called {name!r}.", remedy=hint)


class UnknownAlgorithm(UnknownChoice):
    """No selector, placement or scenario has that name."""

    code = "unknown-algorithm"


class UnknownCommand(UnknownChoice):
    """The command line has no such command."""

    code = "unknown-command"


class NoHosts(InvalidArgument):
    """A lookup in a ring without hosts."""

    code = "no-hosts"


class DuplicateHost(InvalidArgument):
    """A host that is in the ring already."""

    code = "duplicate-host"


class UnknownHost(InvalidArgument):
    """A host that is not in the ring."""

    code = "unknown-host"


class InvalidSetting(InvalidArgument):
    """A setting whose value cannot be used; the sentence names it and where it came from."""

    code = "invalid-setting"


class UnknownSetting(UnknownChoice):
    """A key that no setting has; the sentence names the nearest one that exists."""

    code = "unknown-setting"


class InvalidAddress(InvalidArgument):
    """A URL or host that does not say where to connect to."""

    code = "invalid-address"


class PayloadTooLarge(InvalidArgument):
    """A payload beyond the node's limit."""

    code = "payload-too-large"


class ProtocolViolation(MaitredError):
    """Bytes that are no frame, a body that is no message, or a message out of place. If it is the
    answer, whether the request was done is not known."""

    code = "protocol-violation"
    outcome: ClassVar[RequestOutcome] = "unknown"


class FrameTooLarge(ProtocolViolation):
    """A frame whose header announces more than the limit."""

    code = "frame-too-large"
    outcome = "nothing"


class UnsupportedVersion(ProtocolViolation):
    """The two ends have no version of the protocol in common."""

    code = "unsupported-version"
    outcome = "nothing"


class UnknownRequest(ProtocolViolation):
    """An opcode or a statement that this node does not know."""

    code = "unknown-request"
    outcome = "nothing"


class TooSlow(ProtocolViolation):
    """A peer that took too long for its handshake or for one frame, or that does not read."""

    code = "too-slow"


class IdleTooLong(MaitredError):
    """A connection on which nothing happened for so long that it was closed."""

    code = "idle-too-long"


class Unauthenticated(MaitredError):
    """Nobody we know, or a wrong secret."""

    code = "unauthenticated"


class InvalidToken(Unauthenticated):
    """An API token or a JWT that is not accepted."""

    code = "invalid-token"


class TokenExpired(InvalidToken):
    """An API token or a JWT that was right until it expired."""

    code = "token-expired"


class PermissionDenied(MaitredError):
    """A user we know, who may not do this."""

    code = "permission-denied"


class Overloaded(MaitredError):
    """There is more than can be taken; nothing was done, and a later try may succeed."""

    code = "overloaded"

    def __init__(
        self, sentence: str, *, remedy: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(sentence, remedy=remedy)
        self.retry_after = retry_after
        """Seconds after which trying again makes sense, if somebody could tell."""


class TooManyQueues(Overloaded):
    """A new queue was not made: its namespace, or the store, has as many as allowed."""

    code = "too-many-queues"


class TooManyNewQueues(Overloaded):
    """A new queue was not made: the user makes new ones too fast."""

    code = "too-many-new-queues"


class TooManyGateways(Overloaded):
    """A query table is not watched: its user, its address or the node has as many as allowed."""

    code = "too-many-gateways"


class AtCapacity(Overloaded):
    """The worker serves as many as it measured that it can; nothing was done."""

    code = "at-capacity"

    def __init__(
        self,
        sentence: str,
        *,
        remedy: str | None = None,
        retry_after: float | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(sentence, remedy=remedy, retry_after=retry_after)
        self.limit = limit
        """How many it takes at a time, if it said so."""


class StorageQuotaExceeded(Overloaded):
    """The queue or its namespace stores as much as it may; nothing was done."""

    code = "storage-quota-exceeded"


class TooManyConnections(Overloaded):
    """The shard holds as many connections as it may."""

    code = "too-many-connections"


class TooManyFailures(Overloaded):
    """Too many wrong secrets came from this address in this name; the secret was not looked at."""

    code = "too-many-failures"


class TooManyTokens(MaitredError):
    """The store holds as many API tokens as it may."""

    code = "too-many-tokens"


class TooManyInFlight(Overloaded):
    """The connection has as many unanswered requests as it may."""

    code = "too-many-in-flight"


class DeadlineExceeded(MaitredError, TimeoutError):
    """The time that the caller gave is over. Whether the work was done is not known."""

    code = "deadline-exceeded"
    outcome = "unknown"


class Cancelled(MaitredError):
    """The caller took the request back. Whether it was done is not known."""

    code = "cancelled"
    outcome = "unknown"


class Unavailable(MaitredError, ConnectionError):
    """Nobody could be reached who would do this; nothing was done."""

    code = "unavailable"


class NodeUnreachable(Unavailable):
    """The node that owns the queue, or the shard of it, has been away for longer than the client's
    `away_seconds`; nothing was done."""

    code = "node-unreachable"


class NoWorker(Unavailable):
    """Nobody serves the queue, and nobody came within its grace; nothing was done."""

    code = "no-worker"


class InvalidProof(MaitredError):
    """A worker speaks of an attempt, and does not prove that it was given to this worker."""

    code = "invalid-proof"


class InvalidReservation(Unavailable):
    """A reservation that is unknown here, used already, or over; nothing was done."""

    code = "invalid-reservation"


class SlotTaken(Unavailable):
    """The worker's slot was taken by something else in the same moment; nothing was done."""

    code = "slot-taken"


class TlsFailed(Unavailable):
    """A TLS handshake came to nothing, or the peer showed another certificate than it should."""

    code = "tls-failed"


class Draining(Unavailable):
    """The node is stopping and takes no new work; nothing was done."""

    code = "draining"


class StoreUnavailable(Unavailable):
    """The store cannot be written or read now; what was acknowledged is safe, nothing was done."""

    code = "store-unavailable"


class StoreFull(StoreUnavailable):
    """The disk has no room left; nothing was done."""

    code = "store-full"


class NotOwner(Unavailable):
    """Another shard or node has taken this partition over; nothing was done."""

    code = "not-owner"


class QueueDeleted(NotOwner):
    """The queue was deleted while the request waited at it. Nothing was done."""

    code = "queue-deleted"


class ConnectionLost(MaitredError, ConnectionError):
    """The connection broke after the request was sent. Whether it was done is not known."""

    code = "connection-lost"
    outcome = "unknown"


class CutOff(MaitredError):
    """The node stopped before the request was finished. Whether it was done is not known."""

    code = "cut-off"
    outcome = "unknown"


class Closed(MaitredError):
    """The client was closed by its own program. A request under way may have been done."""

    code = "closed"
    outcome = "unknown"


class InternalError(MaitredError):
    """A fault of ours, written to the node's log; the connection goes on. Whether the request was
    done is not known."""

    code = "internal-error"
    outcome = "unknown"


class OutcomeUnknown(MaitredError):
    """The store did not confirm a commit, or a worker has a task that the store does not have:
    whether the request was done, wholly or in part, is not known."""

    code = "outcome-unknown"
    outcome = "unknown"


class CannotStart(MaitredError):
    """The node cannot start here: an address in use, a directory that cannot be written."""

    code = "cannot-start"


class ShardsKeepDying(MaitredError):
    """A shard died so often that restarting it is pointless; the node has stopped."""

    code = "shards-keep-dying"


class InvalidHandler(InvalidArgument):
    """A function that cannot be a handler: its parameters or annotations cannot be written down."""

    code = "invalid-handler"


class InvalidArguments(InvalidArgument):
    """Arguments that do not fit the handler; the sentence names the parameter."""

    code = "invalid-arguments"


class NoHandlerFits(InvalidArguments):
    """Arguments that fit no handler that serves the queue now or did in the last day; nothing was
    added."""

    code = "no-handler-fits"


class InvalidTaskId(InvalidArgument):
    """Text that names no task of this app."""

    code = "invalid-task-id"


class CannotLoad(InvalidArgument):
    """What a worker is to serve cannot be imported, or is no App with handlers."""

    code = "cannot-load"


class TaskNotDone(MaitredError):
    """A task is over, and there is no result; which of these it is says why."""

    code = "task-not-done"
    outcome = "over"


class TaskFailed(TaskNotDone):
    """The handler raised, or its attempts took too long, or their workers were lost."""

    code = "task-failed"

    def __init__(
        self,
        sentence: str,
        *,
        remedy: str | None = None,
        kind: str = "",
        message: str = "",
        remote_traceback: str = "",
        attempts: int = 0,
    ) -> None:
        super().__init__(sentence, remedy=remedy)
        self.kind = kind
        """The class of the exception, or a code of ours."""
        self.message = message
        self.remote_traceback = remote_traceback
        """The worker's, as text; empty if there is none."""
        self.attempts = attempts


class TaskCancelled(TaskNotDone):
    """Somebody cancelled the task."""

    code = "task-cancelled"


class TaskExpired(TaskNotDone):
    """The task had not begun when its time was over, and will not."""

    code = "task-expired"


class TaskDamaged(TaskNotDone):
    """The task, or its result, is in a row of the store that cannot be read and was set aside."""

    code = "task-damaged"


class UnknownQueue(InvalidArgument):
    """A queue, or a partition of one, that does not exist."""

    code = "unknown-queue"


class QueueInUse(InvalidArgument):
    """A queue is not deleted, because it has tasks, dead letters, workers or waiting queries."""

    code = "queue-in-use"


class UnknownTask(MaitredError):
    """The task does not exist: the partition never gave out this number."""

    code = "unknown-task"


class TaskForgotten(MaitredError):
    """The task is over, and what came of it is no longer known: its result is no longer kept."""

    code = "task-forgotten"
    outcome = "over"


class InvalidResult(MaitredError):
    """The result of a task is not what its handler says it returns."""

    code = "invalid-result"
    outcome = "over"


class QueryNotAnswered(MaitredError):
    """A query that began has no answer; which of these it is says why."""

    code = "query-not-answered"
    outcome: ClassVar[RequestOutcome] = "over"


class QueryFailed(QueryNotAnswered):
    """The handler's own error: it raised, or returned what cannot be carried."""

    code = "query-failed"

    def __init__(
        self,
        sentence: str,
        *,
        remedy: str | None = None,
        kind: str = "",
        message: str = "",
        remote_traceback: str = "",
    ) -> None:
        super().__init__(sentence, remedy=remedy)
        self.kind = kind
        """The class of the exception, or a code of ours."""
        self.message = message
        self.remote_traceback = remote_traceback
        """The worker's, as text; empty if there is none, or it is not to be shown."""


class WorkerLost(QueryNotAnswered):
    """The worker was lost, or hung, while it ran the query. Whether it was done is not known."""

    code = "worker-lost"
    outcome = "unknown"


class ResultTooLarge(QueryNotAnswered):
    """The result is larger than the queue or the user may have."""

    code = "result-too-large"


class UnserialisableResult(QueryNotAnswered):
    """A result that the format which the caller wants cannot carry."""

    code = "unserialisable-result"


class UnknownQuery(MaitredError):
    """There is no such query in the tables, or it is over and forgotten."""

    code = "unknown-query"


class UnknownWorker(MaitredError):
    """No worker of that name serves the queue."""

    code = "unknown-worker"


class UnknownUser(InvalidArgument):
    """There is no user of that name."""

    code = "unknown-user"


class UnknownToken(MaitredError):
    """There is no API token with that id."""

    code = "unknown-token"


class MalformedRequest(ProtocolViolation):
    """Bytes that are no HTTP request, or one that could be read in two ways."""

    code = "malformed-request"
    outcome = "nothing"


class HeadersTooLarge(ProtocolViolation):
    """A request line with headers beyond the limit."""

    code = "headers-too-large"
    outcome = "nothing"


class UnsupportedHttp(ProtocolViolation):
    """A version of HTTP, or a transfer coding, that is not spoken here."""

    code = "unsupported-http"
    outcome = "nothing"


class ExpectationFailed(ProtocolViolation):
    """The request expects something other than `100-continue`."""

    code = "expectation-failed"
    outcome = "nothing"


class UnknownRoute(InvalidArgument):
    """A path that leads nowhere."""

    code = "unknown-route"


class MethodNotAllowed(InvalidArgument):
    """A path that exists, with a method that it does not have."""

    code = "method-not-allowed"


class UnsupportedMediaType(InvalidArgument):
    """A body in a format that is not read here."""

    code = "unsupported-media-type"


class NotAcceptable(InvalidArgument):
    """The caller takes no format that the answer could have."""

    code = "not-acceptable"


class UpstreamError(MaitredError):
    """The HTTP back end behind a worker did not answer as it should; which of these it is says
    how."""

    code = "upstream-error"
    outcome = "unknown"


class UpstreamUnavailable(UpstreamError):
    """It cannot be reached, or the connection broke before the answer was complete."""

    code = "upstream-unavailable"


class UpstreamTimeout(UpstreamError):
    """It took longer than it may."""

    code = "upstream-timeout"


class UpstreamFailed(UpstreamError):
    """It answered with an error of its own, or with a refusal."""

    code = "upstream-failed"


class UpstreamGarbage(UpstreamError):
    """What it answered is no HTTP, is larger than it may be, or is not what it says it is."""

    code = "upstream-garbage"


class RemoteError(MaitredError):
    """An error that a newer peer reports and this version has no class for; its code is kept."""

    code = "remote-error"
    outcome = "unknown"

    def __init__(self, sentence: str, *, remedy: str | None = None, code: str) -> None:
        super().__init__(sentence, remedy=remedy)
        self.code = code  # type: ignore[misc]
