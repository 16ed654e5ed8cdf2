"""A handler that passes every query on to an HTTP back end which knows nothing of maitred.

Arguments by the names `method`, `path`, `headers` and `body`, or `"GET", "/path"` in that order,
are a request, and the answer is `{"status", "headers", "body"}`. Any other arguments are posted as
JSON, and the back end's JSON is the result: a caller by HTTP need not know that there is a worker
in between. An error of the back end is a typed failure, which never counts as work done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from maitred.app.attempt import current
from maitred.app.signature import Signature
from maitred.errors import InvalidArguments, MaitredError, UpstreamFailed, UpstreamGarbage
from maitred.worker import outcomes
from maitred.worker.upstream import METHODS, OURS, UpstreamPool

if TYPE_CHECKING:
    from maitred.app.app import App
    from maitred.app.handler import Handler
    from maitred.settings import Upstream as UpstreamSettings
    from maitred.worker.upstream import UpstreamAddress, UpstreamAnswer

NAMES: Final = ("method", "path", "headers", "body")
JSON: Final = "application/json"
TRACE_HEADERS: Final = ("traceparent", "tracestate")
BYTES: Final = "application/octet-stream"
EXCERPT_LETTERS: Final = 300
"""Most letters of the back end's error that the failure quotes."""
TOO_MANY: Final = 429

_read: Final = msgspec.msgpack.Decoder().decode
_read_json: Final = msgspec.json.Decoder().decode
_write_json: Final = msgspec.json.Encoder().encode


class UpstreamRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An HTTP request of any kind, as a query's arguments describe it."""

    method: str = "POST"
    path: str = "/"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: Any = b""
    plain: bool = False
    """Whether the caller wants only the body of the back end's answer."""


class Raw(Signature):
    """Passes the arguments on as they came: `understood` decides what they mean."""

    __slots__ = ()

    def read(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (payload,), {}

    def describe(self, hidden: tuple[str, ...] = ()) -> bytes:  # noqa: ARG002 - it hides nothing
        return b""


class UpstreamHandler:
    """The handler that passes each query on to an HTTP back end."""

    def __init__(self, place: UpstreamAddress, settings: UpstreamSettings) -> None:
        self._place = place
        self._settings = settings
        self._upstream: UpstreamPool | None = None

    def serve(self, app: App, queue: str) -> Handler[Any, Any, Any]:
        """Register the handler for this queue."""

        async def forward(payload: bytes) -> Any:  # noqa: ANN401 - what the back end answers
            return await self.forward(payload)

        handler = app.handler(queue)(forward)
        handler.signature = Raw(forward)
        return handler

    def close(self) -> None:
        """Close the connections."""
        if self._upstream is not None:
            self._upstream.close()

    async def forward(self, payload: bytes) -> Any:  # noqa: ANN401 - what the back end answers
        """Send the request that the arguments mean, and return the result of its answer."""
        upstream = self._upstream
        if upstream is None:
            upstream = self._upstream = UpstreamPool(self._place, self._settings)
        try:
            request = understood(payload)
            headers, body = content(request)
            answer = await upstream.ask(
                request.method, request.path, headers, body, self._settings.body_bytes
            )
            return result(request, answer)
        except MaitredError as problem:
            # With its code, and without a traceback, which would only show this file.
            raise outcomes.Unfit(outcomes.failure(problem.code, str(problem))) from None


def understood(payload: bytes) -> UpstreamRequest:
    """Return the request that the arguments mean; raise `InvalidArguments` if they mean none."""
    try:
        given = _read(payload)
    except msgspec.DecodeError as problem:
        raise InvalidArguments(f"The arguments cannot be read: {problem}.") from None
    if isinstance(given, dict):
        if (
            given
            and all(name in NAMES for name in given)
            and ("method" in given or "path" in given)
        ):
            return _fitted(given)
        return UpstreamRequest(body=given, plain=True)
    if not isinstance(given, list):
        return UpstreamRequest(body=given, plain=True)
    if (
        2 <= len(given) <= len(NAMES)
        and given[0] in METHODS
        and isinstance(given[1], str)
        and given[1].startswith("/")
    ):
        return _fitted(dict(zip(NAMES, given, strict=False)))
    if not given:
        return UpstreamRequest(plain=True)
    return UpstreamRequest(body=given[0] if len(given) == 1 else given, plain=True)


def _fitted(given: dict[str, Any]) -> UpstreamRequest:
    try:
        return msgspec.convert(given, UpstreamRequest)
    except msgspec.ValidationError as problem:
        raise InvalidArguments(f"The request does not fit: {problem}.") from None


def content(request: UpstreamRequest) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body to send."""
    headers, body = request.headers, request.body
    named = {name.lower() for name in headers}
    kind = ""
    if isinstance(body, bytes):
        kind = BYTES if body else ""
    elif isinstance(body, str) and not request.plain:
        body, kind = body.encode(), "text/plain; charset=utf-8"
    elif body is None and not request.plain:
        body = b""
    else:
        try:
            body, kind = _write_json(body), JSON
        except (TypeError, ValueError, RecursionError) as problem:
            raise InvalidArguments(f"The body cannot be written as JSON: {problem}.") from None
    defaults = {"Accept": JSON} if request.plain else {}
    if kind:
        defaults["Content-Type"] = kind
    asked_by = current().query_id
    if asked_by:
        defaults["X-Request-Id"] = asked_by
    if named.isdisjoint(TRACE_HEADERS):  # else the caller has begun the trace of the back end
        defaults |= current().trace_headers()
    for name, value in defaults.items():
        if name.lower() not in named:
            headers = {**headers, name: value}
    return headers, body


def result(request: UpstreamRequest, answer: UpstreamAnswer) -> Any:  # noqa: ANN401 - what the back end answers
    """Return the result for the back end's answer; raise `UpstreamError` if it is an error."""
    status = answer.status
    if status >= 500 or status == TOO_MANY or (request.plain and status >= 300):
        excerpt = answer.body[: 4 * EXCERPT_LETTERS].decode(errors="replace")[:EXCERPT_LETTERS]
        said = f": {excerpt.strip()}" if excerpt.strip() else "."
        raise UpstreamFailed(f"The back end answered with the status {status}{said}")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    body: Any = answer.body
    if kind == JSON or kind.endswith("+json"):
        try:
            body = _read_json(answer.body) if answer.body else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise UpstreamGarbage(f"The back end's JSON cannot be read: {problem}.") from None
    elif kind.startswith("text/"):
        body = answer.body.decode(errors="replace")
    elif request.plain and not answer.body:
        body = None
    if request.plain:
        return body
    headers = {name: value for name, value in answer.headers.items() if name not in OURS}
    return {"status": status, "headers": headers, "body": body}
