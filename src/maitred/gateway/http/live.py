"""Views that stay up to date: a stream of server-sent events with the answers of GET requests.

The console shows a view, and asks here for the same requests with which it could poll. The gateway
computes each of them again every few seconds, and sends the answer when it has changed. The caller
is checked each time, as if it had asked again; a user who loses a permission gets the refusal.

A stream costs the node at most one part in `REST` of what one core can do: after an answer that
took long, the pause is longer. Several views share one stream, because browsers open few
connections to a host.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from maitred.errors import InvalidArgument, MaitredError, Overloaded, Unavailable
from maitred.gateway.admin.caller import AdminCaller
from maitred.gateway.http.formats import AS_JSON, EVENTS
from maitred.gateway.http.request import HttpRequest
from maitred.gateway.http.statuses import status_of, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.gateway.admin.views import AdminViews
    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.routes import Found, HttpRoute

VIEWS_MAX: Final = 4
"""Most views of one stream: a page shows three at a time."""

STREAMS_MAX: Final = 200
"""Most streams of a gateway. Each is a browser that shows the console; a hundred operators have a
tab each, and some reload theirs."""

INTERVAL_SECONDS: Final = 2.0
"""The pause between two looks, unless the caller names another: quick enough to follow a change,
slow enough that a number can be read."""

REST: Final = 100
"""How many times as long as the last look took the pause is at least. A page of the console has two
streams at most, and so takes less than 2 % of a core."""

REST_MOST_SECONDS: Final = 30.0
"""The longest pause for that reason: a node that was slow once, for a moment, is asked again."""

AWAY_REST_SECONDS: Final = 3.0
"""The longest pause after an answer that some part of the system did not contribute to: it took
long because the gateway waited for that part, which is no work. A page shows that a node is back
within so many seconds."""

HEARTBEAT_SECONDS: Final = 10.0
"""A stream without news sends a comment this often: proxies close connections that are silent, and
a browser notices that the gateway is gone."""

HEARTBEAT: Final = b":\n\n"


def pause_after(seconds: float, interval: float, *, is_whole: bool) -> float:
    """Return the pause after a look that took so long; `is_whole`: all parts of the system that
    were asked have answered."""
    return max(interval, min(seconds * REST, REST_MOST_SECONDS if is_whole else AWAY_REST_SECONDS))


class LiveListener(Protocol):
    """The listener that serves the streams."""

    loop: asyncio.AbstractEventLoop

    @property
    def draining(self) -> bool:
        """Whether the gateway is stopping."""

    def find(self, request: HttpRequest) -> Found:
        """Return the route of a request, with its parameters parsed."""

    async def identify(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Set the identity of a request anew; raise if the user is no longer valid."""

    def check_permission(
        self, request: HttpRequest, route: HttpRoute, values: tuple[Any, ...]
    ) -> None:
        """Raise unless the user has the permission of the route."""

    def typed(self, request: HttpRequest, problem: BaseException) -> MaitredError:
        """Return the error that the caller gets; log an unexpected exception."""


class LiveRoutes:
    """The streams of a listener."""

    def __init__(self, listener: LiveListener, views: AdminViews) -> None:
        self._listener = listener
        self._views = views
        self.open_streams = 0
        """How many streams there are."""
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams: the gateway stops."""
        self._stopping.set()

    async def live(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Send the answers of the views, now and after each change, until the caller leaves."""
        paths = [one for one in request.query.get("view", "").split("\n") if one]
        if not 1 <= len(paths) <= VIEWS_MAX:
            raise InvalidArgument(
                f"A stream has 1 to {VIEWS_MAX} views, one a line.",
                remedy="Name the path of a GET request, URL-encoded, in `view`.",
            )
        views = [self._view(one) for one in paths]
        for view in views:
            self._found(request, view)
        if self.open_streams >= STREAMS_MAX:
            raise Overloaded(
                f"This gateway has {STREAMS_MAX:,} streams of the console already.",
                remedy="Close some pages of the console.",
            )
        interval = request.query.get("interval", INTERVAL_SECONDS)
        self.open_streams += 1
        try:
            connection.begin_stream(request, EVENTS, b"X-Accel-Buffering: no\r\n")
            await self._send(connection, request, views, interval)
        finally:
            self.open_streams -= 1
        connection.end_stream(request)

    def _view(self, path: str) -> HttpRequest:
        try:
            target = path.encode("ascii")
        except UnicodeEncodeError:
            raise InvalidArgument(f"The view {path[:60]!r} is not URL-encoded.") from None
        return HttpRequest(b"GET", target, {}, b"", self._listener.loop.time())

    def _found(self, request: HttpRequest, view: HttpRequest) -> Found:
        """Return the route of a view, whose permission the user has."""
        found = self._listener.find(view)
        if found.route.handler not in self._views.by_handler:
            raise InvalidArgument(
                f"{found.route.path} is no view that can be followed.",
                remedy="Ask for it with GET.",
            )
        view.identity = request.identity
        self._listener.check_permission(view, found.route, found.values)
        return found

    async def _send(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        views: list[HttpRequest],
        interval: float,
    ) -> None:
        loop = self._listener.loop
        before: list[bytes] = [b""] * len(views)
        sent_at = loop.time()
        while not self._stopping.is_set():
            began = loop.time()
            is_whole = True
            for number, view in enumerate(views):
                event, has_all = await self._event(connection, request, view, number)
                is_whole = is_whole and has_all
                if event != before[number]:
                    before[number] = event
                    await connection.send_piece(request, event)
                    sent_at = loop.time()
            now = loop.time()
            again_at = now + pause_after(now - began, interval, is_whole=is_whole)
            while not self._stopping.is_set() and now < again_at:
                if now - sent_at >= HEARTBEAT_SECONDS:
                    await connection.send_piece(request, HEARTBEAT)
                    sent_at = now
                await self._wait(min(again_at, sent_at + HEARTBEAT_SECONDS) - now)
                now = loop.time()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _event(
        self, connection: HttpConnection, request: HttpRequest, view: HttpRequest, number: int
    ) -> tuple[bytes, bool]:
        """Return the event with the answer of a view, or with the reason why there is none; and
        whether all parts of the system that were asked have answered."""
        try:
            await self._listener.identify(connection, request)
            found = self._found(request, view)
            caller = AdminCaller(request.identity, str(connection.source))
            answer = await self._views.show(found.route.handler, caller, view.query, found.values)
            event = b"event: %d\ndata: %b\n\n" % (number, AS_JSON.value(answer))
            return event, not getattr(answer, "unreachable", None)
        except Exception as problem:  # noqa: BLE001 - the stream goes on
            typed = self._listener.typed(request, problem)
            said: Mapping[str, Any] = {
                "status": status_of(typed),
                **told(typed, tracebacks=False),
            }
            event = b"event: %d-error\ndata: %b\n\n" % (number, AS_JSON.value(said))
            return event, not isinstance(typed, Unavailable)
