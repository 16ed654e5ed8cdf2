"""The HTTP status and the body of every error, from one table.

The most specific class counts. A new class of errors gets the status of its parent.
"""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Any, Final

from maitred import errors
from maitred.errors import MaitredError, Overloaded, QueryFailed, TaskFailed, Unavailable
from maitred.gateway.http.routes import NotAllowed

STATUSES: Final[dict[type[MaitredError], int]] = {
    MaitredError: 500,
    # Errors that the caller can correct.
    errors.InvalidArgument: 400,
    errors.MalformedRequest: 400,
    errors.Unauthenticated: 401,
    errors.PermissionDenied: 403,
    errors.UnknownRoute: 404,
    errors.UnknownQueue: 404,
    errors.UnknownTask: 404,
    errors.UnknownQuery: 404,
    errors.UnknownWorker: 404,
    errors.UnknownToken: 404,
    errors.TooManyTokens: 409,
    errors.UnsafePartitionChange: 409,
    errors.QueueInUse: 409,
    errors.ControlsConflict: 409,
    errors.TaskNotChanged: 409,
    errors.ClusterNotUpgraded: 409,
    errors.MethodNotAllowed: 405,
    errors.NotAcceptable: 406,
    errors.UnserialisableResult: 406,
    errors.TooSlow: 408,
    errors.IdleTooLong: 408,
    errors.Cancelled: 409,
    errors.TaskCancelled: 409,
    errors.TaskExpired: 410,
    errors.TaskForgotten: 410,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.ExpectationFailed: 417,
    errors.NoHandlerFits: 422,
    errors.Overloaded: 429,
    errors.HeadersTooLarge: 431,
    # Errors of a handler.
    errors.QueryFailed: 500,
    errors.TaskFailed: 500,
    # Errors of the gateway, the node or a worker.
    errors.InternalError: 500,
    errors.UnsupportedHttp: 505,
    errors.ProtocolViolation: 502,
    errors.ConnectionLost: 502,
    errors.CutOff: 502,
    errors.OutcomeUnknown: 502,
    errors.InvalidResult: 502,
    errors.QueryNotAnswered: 502,
    errors.WorkerLost: 502,
    errors.ResultTooLarge: 502,
    errors.RemoteError: 502,
    errors.Closed: 503,
    errors.Unavailable: 503,
    errors.TooManyConnections: 503,
    errors.DeadlineExceeded: 504,
    errors.UpstreamError: 502,
    errors.UpstreamTimeout: 504,
}

REASONS: Final = {
    status: HTTPStatus(status).phrase.encode()
    for status in (200, 202, 304, 307, *sorted({*STATUSES.values()}))
} | {413: b"Content Too Large", 422: b"Unprocessable Content"}
"""The reason of each status; two of them have other names in older versions of Python."""

ARGUMENTS: Final = frozenset((errors.InvalidArguments.code, errors.InvalidArgument.code))
"""With these codes the arguments did not fit the handler, which is the caller's fault."""

UPSTREAM: Final = {
    errors.UpstreamError.code: 502,
    errors.UpstreamUnavailable.code: 502,
    errors.UpstreamTimeout.code: 504,
    errors.UpstreamFailed.code: 502,
    errors.UpstreamGarbage.code: 502,
}
"""The statuses of a handler that forwards to a back end which failed, by error code."""

RETRY_SECONDS: Final = 1
"""The Retry-After, in seconds, of an error that states none."""


def status_of(problem: MaitredError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(problem, QueryFailed) and problem.kind in ARGUMENTS:
        return 400
    if isinstance(problem, QueryFailed) and problem.kind in UPSTREAM:
        return UPSTREAM[problem.kind]
    for kind in type(problem).__mro__:
        status = STATUSES.get(kind)
        if status is not None:
            return status
    return 500


def extra_headers(problem: MaitredError) -> bytes:
    """Return the extra headers that some errors need."""
    status = status_of(problem)
    if status in {429, 503}:
        after = problem.retry_after if isinstance(problem, Overloaded) else None
        return b"Retry-After: %d\r\n" % (RETRY_SECONDS if after is None else max(1, ceil(after)))
    if isinstance(problem, errors.InvalidToken):
        return b'WWW-Authenticate: Bearer realm="maitred", error="invalid_token"\r\n'
    if isinstance(problem, NotAllowed):
        return b"Allow: %b\r\n" % problem.allow.encode()
    if status == 401:
        return b'WWW-Authenticate: Basic realm="maitred", charset="UTF-8"\r\n'
    return b""


def told(problem: MaitredError, *, tracebacks: bool) -> dict[str, Any]:
    """Return the body of an error, before it is encoded in JSON or msgpack."""
    said: dict[str, Any] = {
        "code": problem.code,
        "message": problem.sentence,
        "remedy": problem.remedy,
        "outcome": problem.outcome.value,
    }
    if isinstance(problem, QueryFailed | TaskFailed):
        said["kind"] = problem.kind
        said["message"] = problem.message or problem.sentence
        if tracebacks and problem.remote_traceback:
            said["traceback"] = problem.remote_traceback
    return {"error": said}


def behind_us(problem: MaitredError) -> MaitredError:
    """Convert an error of the node for the caller: if the node refuses the *gateway's* login, the
    caller's own credentials cannot help."""
    if isinstance(problem, errors.Unauthenticated):
        return Unavailable(
            "The node does not let the gateway in.",
            remedy="Check the user and the secret of the address that the gateway was given.",
        )
    return problem
