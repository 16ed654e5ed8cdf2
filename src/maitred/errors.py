"""The one taxonomy of errors, for the library, the command line and every listener.

An error has a code that programs may compare, a plain sentence for people and, where one exists,
a remedy. Codes are part of the interface: they are added, never renamed. Its class also says what
became of the request (`outcome`) and whether to send it again (`retry`); every decision to repeat
a request reads these two. docs/errors.md is generated from this file.
"""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


class RequestOutcome(StrEnum):
    """What became of a request that was answered with an error."""

    NOTHING = "nothing"
    """Nothing was done."""
    UNKNOWN = "unknown"
    """It may have been done, wholly or in part."""
    OVER = "over"
    """It was done, and the error says how it ended."""


class RetryAdvice(StrEnum):
    """Whether the same request, sent again, may succeed. If its outcome is unknown, it must also be
    one that may be done twice."""

    NO = "no"
    """The answer stays the same until an operator or a programmer changes something."""
    SOON = "soon"
    """After a backoff of well below a second; clients do so by themselves."""
    LATER = "later"
    """Something has to heal, be freed or be waited for first; the caller decides for how long."""
    UNSURE = "unsure"
    """Nothing is known that would speak for it or against it."""


NOTHING: Final = RequestOutcome.NOTHING
UNKNOWN: Final = RequestOutcome.UNKNOWN
OVER: Final = RequestOutcome.OVER
NO: Final = RetryAdvice.NO
SOON: Final = RetryAdvice.SOON
LATER: Final = RetryAdvice.LATER
UNSURE: Final = RetryAdvice.UNSURE


def printable(text: str) -> str:
    """Return text from elsewhere with its control characters escaped, so that it can
    neither command the terminal that shows it nor pass for another line of a log."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


class MaitredError(Exception):
    """The base class of all errors of maitred: catch this to catch them all."""

    code: ClassVar[str] = "error"
    outcome: ClassVar[RequestOutcome] = NOTHING
    retry: ClassVar[RetryAdvice] = NO

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        outcome: RequestOutcome | None = None,
        retry: RetryAdvice | None = None,
    ) -> None:
        """Take the class's code, outcome and advice; what is not given is the parent's."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if outcome is not None:
            cls.outcome = outcome
        if retry is not None:
            cls.retry = retry

    def __init__(self, sentence: str, *, remedy: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}" if self.remedy else self.sentence

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed soon or later, as far as is known."""
        return self.retry is SOON or self.retry is LATER

    @property
    def nothing_done(self) -> bool:
        """Whether nothing was done, and the same request may succeed when it is sent again."""
        return self.outcome is NOTHING and self.retry is not NO


class InvalidArgument(MaitredError, ValueError, code="invalid-argument"):
    """An argument is wrong and will be wrong again."""


class InvalidName(InvalidArgument, code="invalid-name"):
    """A namespace, queue or host name that is empty, too long, or would make a key ambiguous."""


class InvalidPartition(InvalidArgument, code="invalid-partition"):
    """A partition number, count, batch size or tree degree out of its range."""


class UnsafePartitionChange(InvalidArgument, code="unsafe-partition-change"):
    """A change of partition counts that could strand tasks."""


class InvalidGradualChange(InvalidArgument, code="invalid-gradual-change"):
    """A gradual change whose times or values make no sense."""


class InvalidShards(InvalidArgument, code="invalid-shards"):
    """A shard count or ignore_msb out of its range."""


class UnknownChoice(InvalidArgument, code="unknown-choice"):
    """A name that is in no list of choices; the sentence names the nearest one that is."""

    @classmethod
    def named(cls, what: str, name: str, known: Iterable[str]) -> Self:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Choose one of: {', '.join(names)}."
        return cls(f"There is no {what} called {name!r}.", remedy=hint)


class UnknownAlgorithm(UnknownChoice, code="unknown-algorithm"):
    """The selector, placement or scenario does not exist."""


class UnknownCommand(UnknownChoice, code="unknown-command"):
    """The command does not exist."""


class NoHosts(InvalidArgument, code="no-hosts"):
    """A lookup in a ring without hosts."""


class DuplicateHost(InvalidArgument, code="duplicate-host"):
    """A host that is in the ring already."""


class UnknownHost(InvalidArgument, code="unknown-host"):
    """A host that is not in the ring."""


class InvalidSetting(InvalidArgument, code="invalid-setting"):
    """A setting whose value cannot be used; the sentence names it and where it came from."""


class UnknownSetting(UnknownChoice, code="unknown-setting"):
    """A key that no setting has; the sentence names the nearest one that exists."""


class InvalidAddress(InvalidArgument, code="invalid-address"):
    """A URL or host that does not say where to connect to."""


class PayloadTooLarge(InvalidArgument, code="payload-too-large"):
    """A payload beyond the node's limit."""


class ProtocolViolation(MaitredError, code="protocol-violation", outcome=UNKNOWN):
    """Bytes are not a frame, a body is not a message, or a message is out of place. If it is the
    answer, whether the request was done is not known."""


class FrameTooLarge(ProtocolViolation, code="frame-too-large", outcome=NOTHING):
    """A frame whose header announces more than the limit."""


class UnsupportedVersion(ProtocolViolation, code="unsupported-version", outcome=NOTHING):
    """The two ends have no version of the protocol in common."""


class UnknownRequest(ProtocolViolation, code="unknown-request", outcome=NOTHING):
    """An opcode or a statement that this node does not know."""


class TooSlow(ProtocolViolation, code="too-slow", retry=LATER):
    """A peer took too long for its handshake or for one frame, or does not read."""


class IdleTooLong(MaitredError, code="idle-too-long", retry=SOON):
    """A connection was closed because nothing happened on it for too long."""


class Unauthenticated(MaitredError, code="unauthenticated"):
    """The user does not exist, or the secret is wrong."""


class InvalidToken(Unauthenticated, code="invalid-token"):
    """An API token or a JWT that is not accepted."""


class TokenExpired(InvalidToken, code="token-expired"):
    """An API token or a JWT that was right until it expired."""


class PermissionDenied(MaitredError, code="permission-denied"):
    """The user is authenticated and is not permitted to do this."""


class Overloaded(MaitredError, code="overloaded", retry=SOON):
    """More is asked than can be taken; nothing was done, and a later try may succeed."""

    def __init__(
        self, sentence: str, *, remedy: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(sentence, remedy=remedy)
        self.retry_after = retry_after
        """Seconds after which to try again, if they are known."""


class TooManyQueues(Overloaded, code="too-many-queues", retry=LATER):
    """A new queue was not made: its namespace, or the store, has as many as allowed."""


class TooManyNewQueues(Overloaded, code="too-many-new-queues"):
    """A new queue was not made: the user makes new ones too fast."""


class TooManyGateways(Overloaded, code="too-many-gateways"):
    """A query table is not watched: its user, its address or the node has as many as allowed."""


class AtCapacity(Overloaded, code="at-capacity"):
    """The worker serves as many as it measured that it can; nothing was done."""

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


class StorageQuotaExceeded(Overloaded, code="storage-quota-exceeded", retry=LATER):
    """The queue or its namespace stores as much as it may; nothing was done."""


class TooManyConnections(Overloaded, code="too-many-connections"):
    """The shard holds as many connections as it may."""


class TooManyFailures(Overloaded, code="too-many-failures"):
    """Too many wrong secrets came from this address for this user; the secret was not checked."""


class TooManyTokens(MaitredError, code="too-many-tokens", retry=LATER):
    """The store holds as many API tokens as it may."""


class TooManyInFlight(Overloaded, code="too-many-in-flight"):
    """The connection has as many unanswered requests as it may."""


class DeadlineExceeded(
    MaitredError, TimeoutError, code="deadline-exceeded", outcome=UNKNOWN, retry=LATER
):
    """The request's deadline passed. Whether the work was done is not known."""


class Cancelled(MaitredError, code="cancelled", outcome=UNKNOWN, retry=LATER):
    """The caller took the request back. Whether it was done is not known."""


class Unavailable(MaitredError, ConnectionError, code="unavailable", retry=SOON):
    """No process could be reached that would do this; nothing was done."""


class NodeUnreachable(Unavailable, code="node-unreachable", retry=LATER):
    """The node that owns the queue, or the shard of it, has been away for longer than the client's
    `away_seconds`, or `takeover_seconds` in a cluster; nothing was done."""


class NoWorker(Unavailable, code="no-worker", retry=LATER):
    """No worker serves the queue, and none came within its grace; nothing was done."""


class InvalidProof(MaitredError, code="invalid-proof"):
    """A worker reports on an attempt and does not prove that the attempt was given to it."""


class InvalidReservation(Unavailable, code="invalid-reservation"):
    """A reservation that is unknown here, used already, or over; nothing was done."""


class SlotTaken(Unavailable, code="slot-taken"):
    """The worker's slot was taken by something else in the same moment; nothing was done."""


class TlsFailed(Unavailable, code="tls-failed"):
    """A TLS handshake failed, or the peer showed another certificate than it should."""


class Draining(Unavailable, code="draining"):
    """The node is stopping and takes no new work; nothing was done."""


class StoreUnavailable(Unavailable, code="store-unavailable", retry=LATER):
    """The store cannot be written or read now; what was acknowledged is safe, nothing was done."""


class StoreFull(StoreUnavailable, code="store-full"):
    """The disk has no room left; nothing was done."""


class NotOwner(Unavailable, code="not-owner"):
    """Another shard or node has taken this partition over; nothing was done."""


class QueueDeleted(NotOwner, code="queue-deleted"):
    """The queue was deleted while the request waited at it. Nothing was done."""


class ConnectionLost(
    MaitredError, ConnectionError, code="connection-lost", outcome=UNKNOWN, retry=SOON
):
    """The connection broke after the request was sent. Whether it was done is not known."""


class CutOff(MaitredError, code="cut-off", outcome=UNKNOWN, retry=SOON):
    """The node stopped before the request was finished. Whether it was done is not known."""


class Closed(MaitredError, code="closed", outcome=UNKNOWN):
    """The client was closed by its own program. A request under way may have been done."""


class InternalError(MaitredError, code="internal-error", outcome=UNKNOWN, retry=UNSURE):
    """A fault of maitred, written to the node's log; the connection goes on. Whether the request
    was done is not known."""


class OutcomeUnknown(MaitredError, code="outcome-unknown", outcome=UNKNOWN, retry=UNSURE):
    """The store did not confirm a commit, or a worker has a task that the store does not have:
    whether the request was done, wholly or in part, is not known."""


class CannotStart(MaitredError, code="cannot-start"):
    """The node cannot start here: an address in use, a directory that cannot be written."""


class ShardsKeepDying(MaitredError, code="shards-keep-dying"):
    """A shard died so often that restarting it is pointless; the node has stopped."""


class InvalidHandler(InvalidArgument, code="invalid-handler"):
    """A function that cannot be a handler: its parameters or annotations cannot be serialised."""


class InvalidArguments(InvalidArgument, code="invalid-arguments"):
    """Arguments that do not fit the handler; the sentence names the parameter."""


class NoHandlerFits(InvalidArguments, code="no-handler-fits"):
    """Arguments that fit no handler that serves the queue now or did in the last day; nothing was
    added."""


class InvalidTaskId(InvalidArgument, code="invalid-task-id"):
    """Text that is not the id of a task of this app."""


class CannotLoad(InvalidArgument, code="cannot-load"):
    """What a worker is to serve cannot be imported, or is not an App with handlers."""


class TaskNotDone(MaitredError, code="task-not-done", outcome=OVER):
    """A task is over, and there is no result; the subclass says why."""


class TaskFailed(TaskNotDone, code="task-failed"):
    """The handler raised, or its attempts took too long, or their workers were lost."""

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


class TaskCancelled(TaskNotDone, code="task-cancelled"):
    """The task was cancelled."""


class TaskPurged(TaskCancelled, code="task-purged"):
    """An operator purged the queue before the task began; it never runs."""


class TaskExpired(TaskNotDone, code="task-expired"):
    """The task had not begun when it expired, and will not."""


class TaskDamaged(TaskNotDone, code="task-damaged"):
    """The task, or its result, is in a row of the store that cannot be read and was set aside."""


class UnknownQueue(InvalidArgument, code="unknown-queue"):
    """A queue, or a partition of one, that does not exist."""


class QueueInUse(InvalidArgument, code="queue-in-use"):
    """A queue is not deleted, because it has tasks, dead letters, workers or waiting queries."""


class ControlsConflict(InvalidArgument, code="controls-conflict"):
    """The controls of a queue are not changed: another operator has changed them meanwhile."""


class TaskNotChanged(InvalidArgument, code="task-not-changed"):
    """The task is not changed: the action does not apply to the state that it is in."""


class UnknownTask(MaitredError, code="unknown-task"):
    """The task does not exist: the partition never gave out this number."""


class TaskForgotten(MaitredError, code="task-forgotten", outcome=OVER):
    """The task is over, and what came of it is no longer known: its result is no longer kept."""


class InvalidResult(MaitredError, code="invalid-result", outcome=OVER):
    """The result of a task is not what its handler says it returns."""


class QueryNotAnswered(MaitredError, code="query-not-answered", outcome=OVER):
    """A query that began has no answer; the subclass says why."""


class QueryFailed(QueryNotAnswered, code="query-failed"):
    """The handler raised, or returned a value that cannot be serialised."""

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


class WorkerLost(QueryNotAnswered, code="worker-lost", outcome=UNKNOWN, retry=SOON):
    """The worker was lost, or hung, while it ran the query. Whether it was done is not known."""


class ResultTooLarge(QueryNotAnswered, code="result-too-large"):
    """The result is larger than the queue or the user may have."""


class UnserialisableResult(QueryNotAnswered, code="unserialisable-result"):
    """The result cannot be serialised in the format that the caller wants."""


class UnknownQuery(MaitredError, code="unknown-query"):
    """The query does not exist, or is over and forgotten."""


class UnknownWorker(MaitredError, code="unknown-worker"):
    """No worker of that name serves the queue."""


class UnknownUser(InvalidArgument, code="unknown-user"):
    """The user does not exist."""


class NoCluster(InvalidArgument, code="no-cluster"):
    """The request is about a cluster, and the node belongs to none."""


class ClusterNotUpgraded(MaitredError, code="cluster-not-upgraded", retry=LATER):
    """A node of the cluster runs an earlier release, which would not heed the change."""


class UnknownNode(InvalidArgument, code="unknown-node"):
    """No member of the cluster has this name, or several have it."""


class UnsafeMemberChange(InvalidArgument, code="unsafe-member-change"):
    """A change of a member's state that its state does not allow, or that would leave the cluster
    without an active node."""


class UnknownToken(MaitredError, code="unknown-token"):
    """The API token does not exist."""


class MalformedRequest(ProtocolViolation, code="malformed-request", outcome=NOTHING):
    """Bytes are not an HTTP request, or are one that could be read in two ways."""


class HeadersTooLarge(ProtocolViolation, code="headers-too-large", outcome=NOTHING):
    """A request line with headers beyond the limit."""


class UnsupportedHttp(ProtocolViolation, code="unsupported-http", outcome=NOTHING):
    """A version of HTTP, or a transfer coding, that is not supported."""


class ExpectationFailed(ProtocolViolation, code="expectation-failed", outcome=NOTHING):
    """The request expects something other than `100-continue`."""


class UnknownRoute(InvalidArgument, code="unknown-route"):
    """The path does not exist."""


class MethodNotAllowed(InvalidArgument, code="method-not-allowed"):
    """The path exists, and does not have this method."""


class UnsupportedMediaType(InvalidArgument, code="unsupported-media-type"):
    """The body is in a format that is not supported."""


class NotAcceptable(InvalidArgument, code="not-acceptable"):
    """The caller accepts no format that the answer could have."""


class UpstreamError(MaitredError, code="upstream-error", outcome=UNKNOWN, retry=UNSURE):
    """The HTTP back end behind a worker did not answer as it should; the subclass says how."""


class UpstreamUnavailable(UpstreamError, code="upstream-unavailable"):
    """The HTTP back end cannot be reached, or the connection broke before the answer's end."""


class UpstreamTimeout(UpstreamError, code="upstream-timeout"):
    """The HTTP back end took longer than it may."""


class UpstreamFailed(UpstreamError, code="upstream-failed"):
    """The HTTP back end answered with an error of its own, or with a refusal."""


class UpstreamGarbage(UpstreamError, code="upstream-garbage"):
    """The back end's answer is not HTTP, is too large, or is not of the type that it names."""


class RemoteError(MaitredError, code="remote-error", outcome=UNKNOWN, retry=UNSURE):
    """A newer peer reports an error that this version has no class for; its code and outcome are
    kept."""

    def __init__(
        self,
        sentence: str,
        *,
        remedy: str | None = None,
        code: str,
        outcome: RequestOutcome = UNKNOWN,
    ) -> None:
        super().__init__(sentence, remedy=remedy)
        self.code = code  # type: ignore[misc]
        self.outcome = outcome  # type: ignore[misc]
