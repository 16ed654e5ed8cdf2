"""The HTTP listener: accepts connections, authenticates requests and passes them to handlers.

One timer checks all connections; a connection has none of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

from maitred.config import is_loopback
from maitred.errors import (
    Draining,
    InternalError,
    InvalidArgument,
    MaitredError,
    PermissionDenied,
    Unauthenticated,
)
from maitred.gateway.http.admin import AdminRoutes
from maitred.gateway.http.admission import BROWSER, check_browser, check_host, credentials
from maitred.gateway.http.budget import Budgets
from maitred.gateway.http.clock import limits
from maitred.gateway.http.connection import HttpConnection
from maitred.gateway.http.console import ConsoleFiles
from maitred.gateway.http.formats import is_msgpack
from maitred.gateway.http.live import LiveRoutes
from maitred.gateway.http.metrics import Metrics
from maitred.gateway.http.pages import Pages
from maitred.gateway.http.parameters import may_have, parsed
from maitred.gateway.http.queries import QueryRoutes
from maitred.gateway.http.routes import EVERY_ROUTE, ROUTES, Found, HttpRoute, Routes
from maitred.gateway.http.session_routes import SessionRoutes, check_login
from maitred.gateway.http.statuses import behind_us
from maitred.gateway.http.tasks import TaskRoutes
from maitred.logs import OccasionalWarning
from maitred.node.gateway_keeper import cannot_listen
from maitred.node.refusal_log import RefusalLog
from maitred.security.guard import check
from maitred.security.permissions import EVERY_NAMESPACE
from maitred.security.users import CREDENTIALS_IGNORED
from maitred.settings import HTTP_PORT
from maitred.wire.tls_handshakes import TlsHandshakes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping

    from maitred.gateway.gateway import Gateway
    from maitred.gateway.http.budget import Budget
    from maitred.gateway.http.request import HttpRequest
    from maitred.monitor.loop_lag import LoopLag
    from maitred.security.directory import Identity

ACCEPT_BACKLOG: Final = 4_096
"""How many connections may wait to be accepted; the kernel caps it at net.core.somaxconn."""

TURN_CONNECTIONS: Final = 8
"""How many connections with much to parse are served in one iteration of the event loop."""

SWEEP_SECONDS: Final = 1.0
"""The longest pause between two checks of all connections; short time limits make it shorter."""

SWEEP_PORTION: Final = 256
"""How many connections are checked before requests get their turn again."""

DRAIN_LOOK_SECONDS: Final = 0.02
"""How often a stopping listener checks whether it is done."""

TOLD_SECONDS: Final = 10.0
"""The shortest time between two log lines of one kind that strangers can cause (bytes that are not
HTTP, too much memory); the next line tells how many were left out."""

STAYS_OPEN: Final = frozenset(("health", "metrics_page"))
"""The handlers that a stopping gateway still serves."""


class HttpListener:
    """The HTTP listener of a gateway process; implements `GatewayListener`."""

    def __init__(
        self,
        *,
        port: int | None = None,
        tls: ssl.SSLContext | None = None,
        reuse: bool = False,
        lag: LoopLag | None = None,
    ) -> None:
        """`lag` measures the loop, for the metrics page of a real process; None: nothing does."""
        self.lag = lag
        self.loop = asyncio.get_running_loop()
        self.connections: dict[HttpConnection, None] = {}
        self.metrics = Metrics()
        self.draining = False
        self._unread: dict[HttpConnection, None] = {}
        """The connections that have bytes to parse when their turn comes."""
        self._reads_soon = False
        self._unwritten: list[HttpConnection] = []
        """The connections that hold an answer until this iteration of the event loop ends."""
        self.date = b""
        """The Date header, ready to be written."""
        self._port = port
        self._tls = tls
        self._handshakes: TlsHandshakes | None = None
        self._reuse = reuse
        self._users_seen = 1
        """The generation of the users for which all requests in progress were last checked."""
        self._server: asyncio.Server | None = None
        self._queries: QueryRoutes | None = None
        """The handlers of queries, once there is a gateway."""
        self._handlers: dict[str, Callable[..., Coroutine[Any, Any, None] | None]] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._for_here_only = True
        """Whether there are no users and the listener accepts connections of this machine only."""
        self._good_host: bytes | None = None
        """The last Host header that was a name of this machine."""

    # Begin and end

    def lead_to(self, gateway: Gateway) -> None:
        """Prepare to serve a gateway's requests, before listening."""
        self.gateway = gateway
        self.guard = gateway.guard
        self.settings = settings = gateway.settings.gateway
        self.log = gateway.log
        self.budgets = Budgets(settings)
        self.refused: Counter[str] = Counter()
        """Errors given as answers, by code; also those that broke off a stream."""
        self._refusals = RefusalLog(self.refused, self.log)
        self._malformed_warning = OccasionalWarning(
            self.log, "no http on the http port", TOLD_SECONDS
        )
        self._memory_warnings = {
            one.name: OccasionalWarning(
                self.log, f"too much memory for {one.name}; refused", TOLD_SECONDS
            )
            for one in self.budgets.all()
        }
        self.limits = limits(settings)
        self._table = EVERY_ROUTE if settings.console else ROUTES
        self._routes = Routes(self._table)
        self._known_routes = self._routes.remembered
        self.logins = SessionRoutes(
            self.guard,
            self.loop,
            gateway.surroundings.secret,
            idle_seconds=settings.session_seconds,
            tls=self._tls is not None,
        )
        self._for_here_only = not self.guard.required and is_loopback(settings.host)
        self._origins = frozenset(origin.lower().encode() for origin in settings.origins)
        self.needs_user = self._pages_of_users()
        """The handlers that require authentication."""
        self._ignores_credentials = not self.guard.required
        """Whether to log, once, that credentials are ignored because there are no users."""
        queries, tasks, pages = QueryRoutes(self), TaskRoutes(gateway), Pages(self)
        self._queries, self._pages = queries, pages
        admin, console = AdminRoutes(gateway), ConsoleFiles()
        self._live = LiveRoutes(self, admin.views)
        self._handlers = {
            "query": queries.query,
            "cancel_query": queries.cancel_query,
            "add_task": tasks.add_task,
            "task_result": tasks.task_result,
            "cancel_task": tasks.cancel_task,
            "queue_scaling": tasks.queue_scaling,
            "health": pages.health,
            "ready": pages.ready,
            "metrics_page": pages.metrics_page,
            "document": pages.document,
            **admin.handlers,
            "console": console.leading,
            "console_file": console.file,
            "open_session": self.logins.open,
            "close_session": self.logins.close,
            "live": self._live.live,
        }
        self._look_at_date()

    async def start(self, gateway: Gateway) -> str:
        """Listen, and return the address; raise `CannotStart` if listening fails."""
        self.lead_to(gateway)
        settings = self.settings
        port = self._port if self._port is not None else settings.port
        port = HTTP_PORT if port is None else port
        try:
            self._server = await self.loop.create_server(
                self._factory(),
                settings.host,
                port,
                backlog=ACCEPT_BACKLOG,
                reuse_port=self._reuse or None,
            )
        except OSError as problem:
            raise cannot_listen(settings.host, port, problem) from problem
        self.spawn(self._sweep())
        bound = self._server.sockets[0].getsockname()
        self.logins.listens(bound[1])
        host = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"{'https' if self._tls else 'http'}://{host}:{bound[1]}"

    def _factory(self) -> Callable[[], asyncio.Protocol]:
        """Return the factory of connection protocols."""
        factory: Callable[[], asyncio.Protocol] = partial(HttpConnection, self)
        if self._tls is None:
            return factory
        context = self._tls
        # Before a handshake is over there is no `Connection` that the sweep could check.
        seconds = self.settings.header_seconds
        self._handshakes = TlsHandshakes(
            lambda: context,
            seconds,
            self.log,
            self.metrics.count_tls_failure,
            most=self.settings.connections,
        )
        return self._handshakes.before(factory)

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and finish those in progress; return False if some were cut off."""
        self.draining = True
        self._live.stop()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()
        deadline = self.loop.time() + seconds
        while any(connection.is_busy for connection in self.connections):
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        # The last answers are on their way; callers that do not read them are cut off soon.
        deadline = min(deadline, self.loop.time() + 1.0)
        while self.connections and self.loop.time() < deadline:
            for connection in list(self.connections):
                connection.drain()
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        return True

    async def metrics_page(self) -> str:
        """Return the metrics of the gateway, as its page has them."""
        return self._pages.metrics()

    def close(self) -> None:
        """Close all connections at once."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        for task in list(self._tasks):
            task.cancel()
        if self._queries is not None:
            self._queries.close()
        for connection in list(self.connections):
            connection.release()
            connection.transport.abort()

    # Requests

    def read_later(self, connection: HttpConnection) -> None:
        """Let the connection parse more after the others had their turn.

        Only a few connections parse in one iteration of the event loop: five hundred callers that
        send chunks of two bytes slow each other down, but a query of another waits for a few only.
        """
        self._unread[connection] = None
        if not self._reads_soon:
            self._reads_soon = True
            self.loop.call_soon(self._read_some)

    def _read_some(self) -> None:
        for connection in list(islice(self._unread, TURN_CONNECTIONS)):
            del self._unread[connection]
            try:
                connection.read_on()
            except Exception:
                self.log.exception("http connection could not be read")
                connection.transport.abort()
        self._reads_soon = bool(self._unread)
        if self._reads_soon:
            self.loop.call_soon(self._read_some)

    def check_head(self, method: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Raise if a head can be refused by itself, whatever its user and route are.

        The result is cached with the head, so it may depend on nothing that changes.
        """
        host = headers.get(b"host")
        if self._for_here_only and host is not None and host != self._good_host:
            check_host(host, self.settings.host)
            self._good_host = host
        if not BROWSER.isdisjoint(headers):
            check_browser(method, headers, self._origins, tls=self._tls is not None)

    def admit(self, connection: HttpConnection, request: HttpRequest) -> bool | None:
        """Decide by the head of a request whether its body is read; raise if it is refused.

        Return whether the body is needed; None if `admit_later` has to authenticate the caller
        first. A complete request is checked again: users can change meanwhile.
        """
        found = self.find(request)
        if found.route.handler in self.needs_user:
            request.identity = self._known(connection, request)
            if request.identity is None:
                return None
        return self._admit(request, found)

    async def admit_later(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """Verify the credentials, then do the same as `admit`."""
        await self.verify(connection, request)
        return self._admit(request, self.find(request))

    def _admit(self, request: HttpRequest, found: Found) -> bool:
        route = found.route
        self.check_permission(request, route, found.values)
        if route.handler == "open_session":
            check_login(request)
        if route.body:
            headers = request.headers
            # A chunked body may turn out to be empty, and then it need not be declared.
            is_msgpack(headers.get(b"content-type"), headers.get(b"content-length", b""))
        return route.body

    def find(self, request: HttpRequest) -> Found:
        """Return the route of a request, and parse its parameters."""
        path, query = request.target, b""
        found = self._known_routes.get((request.method, path))
        if found is None:
            path, _, query = path.partition(b"?")
            if not path.startswith(b"/"):
                path = _path_of(path)
            found = self._routes.find(request.method, path)
        route = found.route
        request.route = name = route.handler
        if self.draining and name not in STAYS_OPEN:
            raise _stopping()
        if query or may_have(request.headers, route):
            parsed(request, route, query)
        return found

    def serve(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a request, now or later; raise nothing, because the connection goes on."""
        try:
            if request.refusal is not None:
                raise request.refusal  # noqa: TRY301 - answered like all other errors
            route, values = self.find(request)
            name = route.handler
            if self._ignores_credentials and b"authorization" in request.headers:
                self._ignores_credentials = False  # told once
                self.log.warning(CREDENTIALS_IGNORED, peer=str(connection.source))
            if name in self.needs_user:
                request.identity = identity = self._known(connection, request)
                if identity is None:
                    self._start(
                        connection, request, self._let_in(connection, request, route, values)
                    )
                    return
                # This runs for every query, and most users have the permission.
                permission = route.permission
                if permission and not (
                    values and identity.permissions.allows(values[0], permission)
                ):
                    self.check_permission(request, route, values)
            later = self._handlers[name](connection, request, *values)
            if later is not None:
                self._start(connection, request, later)
        except Exception as problem:  # noqa: BLE001 - the caller gets an answer to every error
            self.fail(connection, request, problem)

    @staticmethod
    def check_permission(request: HttpRequest, route: HttpRoute, values: tuple[Any, ...]) -> None:
        """Raise unless the user has the route's permission; the query table's handlers do more."""
        permission = route.permission
        if permission is not None and request.identity is not None:
            # The pages without a namespace concern all of them together.
            namespace = values[0] if values else EVERY_NAMESPACE
            check(request.identity, namespace, permission)

    def _pages_of_users(self) -> frozenset[str]:
        """Return the handlers that require authentication."""
        if not self.guard.required:
            return frozenset()
        closed = {"metrics_page"} if not self.settings.open_metrics else set()
        closed |= {"document"} if not self.settings.open_document else set()
        return frozenset(
            route.handler for route in self._table if not route.is_open or route.handler in closed
        )

    def typed(self, request: HttpRequest, problem: BaseException) -> MaitredError:
        """Return the error that the caller gets; log an unexpected exception."""
        if isinstance(problem, MaitredError):
            return problem
        self.log.error("http request failed", route=request.route, exc_info=problem)
        return InternalError("The gateway failed at this request; its log says more.")

    def fail(
        self, connection: HttpConnection, request: HttpRequest, problem: BaseException
    ) -> None:
        """Answer with an error."""
        try:
            typed = self.typed(request, problem)
            if isinstance(typed, PermissionDenied):
                self._tell_of_refusal(connection, request, typed)
            connection.answer_error(request, typed)
        except Exception:
            self.log.exception("http error could not be answered")
            connection.transport.abort()

    def _tell_of_refusal(
        self, connection: HttpConnection, request: HttpRequest, problem: MaitredError
    ) -> None:
        audit = self.guard.audit
        if audit is not None:
            audit.record(
                f"http {request.route.replace('_', ' ')}",
                user=request.identity.name if request.identity is not None else "",
                source=connection.source,
                target=request.target.partition(b"?")[0].decode("latin-1"),
                allowed=False,
                details={"reason": problem.sentence},
            )

    def _start(
        self, connection: HttpConnection, request: HttpRequest, work: Coroutine[Any, Any, None]
    ) -> None:
        request.task = self.spawn(self._finish(connection, request, work))

    async def _finish(
        self, connection: HttpConnection, request: HttpRequest, work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        except MaitredError as problem:
            # Only a login refuses the caller itself at this point; else it is the node, us.
            is_login = request.route == "open_session"
            self.fail(connection, request, problem if is_login else behind_us(problem))
        except Exception as problem:  # noqa: BLE001 - likewise
            self.fail(connection, request, problem)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task until it ends or the listener closes."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # Answers

    def write_later(self, connection: HttpConnection) -> None:
        """Let the connection write its held answer at the end of this iteration of the event loop.

        Answers of a worker come many at a time. When they are written together, and not each when
        it is ready, the first wakes the caller and the others find it awake; its next requests come
        together as well. With a thousand connections that was 8 % more queries a second.
        """
        if not self._unwritten:
            self.loop.call_soon(self._write_all)
        self._unwritten.append(connection)

    def _write_all(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for connection in unwritten:
            try:
                connection.release()
            except Exception:
                self.log.exception("http answer could not be written")
                connection.transport.abort()

    # Authentication

    def _known(self, connection: HttpConnection, request: HttpRequest) -> Identity | None:
        """Return the user of a request if that is known already; None if it must be verified."""
        header = request.headers.get(b"authorization")
        before = connection.authorized
        generation = self.guard.users.generation
        if before is not None and before[0] == header and before[1] == generation:
            return before[2]
        session = self.logins.of(request) if header is None else None
        if session is not None:
            request.csrf = session.csrf
            return self.logins.known(session)
        identity = self.certified(connection) if header is None else None
        if identity is None:
            identity = self.guard.authenticator.remembered(*credentials(header))
        if identity is not None:
            # An identity that expires is checked again for each request.
            lasts = header is not None and identity.until == inf
            connection.authorized = (header or b"", generation if lasts else -1, identity)
            if before is None:
                self._tell_of_login(connection, identity)
        return identity

    def _tell_of_login(self, connection: HttpConnection, identity: Identity) -> None:
        """Record the first request of a user on a connection."""
        audit = self.guard.audit
        if audit is not None:
            via, source = {"via": identity.via}, connection.source
            audit.record("http login", user=identity.name, source=source, details=via)

    def certified(self, connection: HttpConnection) -> Identity | None:
        """Return the user to whom the connection's client certificate is mapped, or None."""
        shown = connection.transport.get_extra_info("ssl_object")
        now = self.gateway.surroundings.wall_clock()
        return self.guard.authenticator.certified(shown, now)

    def still_known(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """Whether the credentials of a request in progress are valid, as far as that is known
        without verifying them again."""
        header = request.headers.get(b"authorization")
        if header is not None:
            return self.guard.authenticator.remembered(*credentials(header)) is not None
        try:
            return self._known(connection, request) is not None
        except MaitredError:
            return False  # verifying says why

    async def identify(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Set the identity of a request in progress anew; raise if its user is no longer valid."""
        if self.guard.required:
            request.identity = self._known(connection, request)
            if request.identity is None:
                await self.verify(connection, request)

    async def _let_in(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        route: HttpRoute,
        values: tuple[Any, ...],
    ) -> None:
        try:
            await self.verify(connection, request)
        except Unauthenticated as problem:
            self.fail(connection, request, problem)
            return
        self.check_permission(request, route, values)
        later = self._handlers[route.handler](connection, request, *values)
        if later is not None:
            await later

    async def verify(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Verify the credentials of a request, and set its identity; raise if they are wrong."""
        header = request.headers.get(b"authorization")
        session = self.logins.of(request) if header is None else None
        if session is not None:
            request.identity = await self.logins.verify(connection, session)
            return
        user, secret = credentials(header)
        request.identity = await self.guard.authenticator.authenticate(
            user, secret, connection.source
        )
        if request.identity.until != inf:  # `_known` records the others
            self._tell_of_login(connection, request.identity)

    # Log lines that strangers can cause, which are rate-limited

    def malformed(self, peer: str, what: str) -> None:
        """Count and log a connection that does not speak HTTP."""
        self.metrics.malformed += 1
        self._malformed_warning.say(self.loop.time(), peer=peer, reason=what)

    def memory_refused(self, peer: str, budget: Budget) -> None:
        """Count and log a connection that was refused because all of them hold too much."""
        self.metrics.memory_refused += 1
        warning = self._memory_warnings[budget.name]
        warning.say(self.loop.time(), peer=peer, limit=budget.most)

    # Once a second

    async def _sweep(self) -> None:
        interval = min(SWEEP_SECONDS, min(self.limits.values()) / 4)
        while True:
            await asyncio.sleep(interval)
            self._guarded(self._look_at_date)
            self._guarded(self.budgets.look)
            self._guarded(self._refusals.look, self.loop.time())
            self._guarded(self.guard.look, self.spawn)
            self._guarded(self._look_at_users)
            connections = list(self.connections)
            for start in range(0, len(connections), SWEEP_PORTION):
                now = self.loop.time()
                for connection in connections[start : start + SWEEP_PORTION]:
                    if not connection.closed:
                        self._guarded(connection.look_at_clock, now)
                        self._guarded(connection.look_at_token)
                await asyncio.sleep(0)

    def _guarded(self, look: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401
        """Run one check and log its failure, which would otherwise end all time limits."""
        try:
            look(*arguments)
        except Exception:
            self.log.exception("a periodic check failed")

    def _look_at_users(self) -> None:
        """Cut off requests in progress of users who no longer exist, or have a new secret."""
        generation = self.guard.users.generation
        if generation == self._users_seen:
            return
        self._users_seen = generation
        for connection in list(self.connections):
            connection.look_at_user(self.guard.authenticator)

    def _look_at_date(self) -> None:
        now = self.gateway.surroundings.wall_clock()
        with suppress(ValueError, OverflowError, OSError):  # a clock that is years off
            self.date = b"Date: %b\r\n" % formatdate(now, usegmt=True).encode()


def _path_of(target: bytes) -> bytes:
    """Return the path of `http://host/path`, which proxies send; raise for anything else."""
    scheme, slashes, rest = target.partition(b"://")
    if slashes and scheme.lower() in {b"http", b"https"}:
        return b"/" + rest.partition(b"/")[2]
    raise InvalidArgument("The request does not name a path.")


def _stopping() -> Draining:
    return Draining(
        "The gateway is stopping and takes no new requests. Nothing was done.",
        remedy="Ask another gateway, or again in a moment.",
    )
