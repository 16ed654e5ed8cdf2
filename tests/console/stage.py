"""The real HTTP listener with an imaginary node behind it, for tests in a browser.

Static files, logins, sessions, streams, and the checks of permissions are the real ones. The
answers of the admin API come from `World`, and have the classes of the API.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from maitred.errors import MaitredError, RemoteError, Unavailable, UnknownQueue, UnknownTask
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.admin import caller_of
from maitred.gateway.http.formats import AS_JSON, JSON
from maitred.gateway.http.listener import HttpListener
from maitred.logs import logger
from maitred.settings import GatewaySettings, Log, Node, User
from maitred.surroundings import Surroundings
from tests.console.shapes import answer_of
from tests.console.world import POISON_NAME, Refusal, World
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.request import HttpRequest

USERS = {
    "alice": (["admin"], "open sesame"),
    "rita": (["read"], "only looking"),
    POISON_NAME: (["read", "reveal", "produce", "query"], "open sesame"),
}
"""Users with their permissions in all namespaces, and their secrets."""

REFUSALS: dict[str, type[MaitredError]] = {
    "unknown-queue": UnknownQueue,
    "unknown-task": UnknownTask,
}


class Stage:
    """A gateway in a thread of its own."""

    def __init__(
        self,
        world: World,
        *,
        users: bool = True,
        port: int = 0,
        node: str = "maitred://127.0.0.1:1",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.world = world
        self.clock = clock
        self._node = node
        self.port = port
        self.away = False
        """Whether the node behind the gateway does not answer."""
        self.streams = 0
        """Streams of events that pages have open."""
        self.streams_begun = 0
        self._streams_changed = asyncio.Event()
        self._users = users
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._gateway.close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Do something in the gateway's thread."""

        async def do() -> Any:  # noqa: ANN401
            return work()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(20)

    def wait_for_streams(self, number: int) -> None:
        """Wait until pages have so many streams of events open."""

        async def wait() -> None:
            while self.streams != number:
                self._streams_changed.clear()
                await self._streams_changed.wait()

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()

    async def _start(self) -> None:
        users = {
            name: User(secret=cheaply(secret), permissions={"*": permissions})  # type: ignore[dict-item]
            for name, (permissions, secret) in USERS.items()
        }
        settings = Node(gateway=GatewaySettings(port=self.port), users=users if self._users else {})
        surroundings = replace(Surroundings.real(), wall_clock=self.clock)
        log = logger(Log(level="error"))
        self._gateway = Gateway(self._node, settings, surroundings, log)
        self.listener = HttpListener(port=self.port)
        address = await self._gateway.open(self.listener)
        self.port = int(address.rpartition(":")[2])
        self._replace()

    def _replace(self) -> None:
        """Have the world answer what the admin API answers."""
        handlers = self.listener._handlers
        views = self.listener._live._views
        for name in views.by_handler:
            views.by_handler[name] = self._view(name)
        for name in handlers:
            if name not in KEPT and name not in views.by_handler:
                handlers[name] = self._change
        handlers["live"] = self._counted(handlers["live"])

    def _counted(self, stream: Any) -> Any:  # noqa: ANN401
        async def counted(*arguments: Any) -> None:  # noqa: ANN401
            self.streams += 1
            self.streams_begun += 1
            self._streams_changed.set()
            try:
                await stream(*arguments)
            finally:
                self.streams -= 1
                self._streams_changed.set()

        return counted

    def _view(self, name: str) -> Any:  # noqa: ANN401
        async def view(caller: Any, params: dict[str, Any], *values: Any) -> Any:  # noqa: ANN401
            if name == "me":
                return answer_of(name, self._me(caller))
            given = {key: _text(value) for key, value in params.items()}
            return answer_of(name, self._answered(lambda: self.world.view(name, given, values)))

        return view

    def _me(self, caller: Any) -> dict[str, Any]:  # noqa: ANN401
        identity = caller.identity
        return {
            "user": None if identity is None else identity.name,
            "permissions": {"*": ["admin"]} if identity is None else identity.permissions.granted(),
            "release": "0.1.0",
            "node": "127.0.0.1:1",
            "with_users": self._users,
            "csrf": caller.csrf,
        }

    def _answered(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        if self.away:
            raise Unavailable("The node cannot be reached.", remedy="Try again later.")
        self.world.now = self.clock()
        try:
            return work()
        except Refusal as refusal:
            said = refusal.body["error"]
            kind = REFUSALS.get(said["code"])
            if kind is None:
                raise RemoteError(said["message"], code=said["code"]) from None
            raise kind(said["message"], remedy=said["remedy"]) from None

    async def _change(self, connection: HttpConnection, request: HttpRequest, *values: Any) -> None:  # noqa: ANN401
        caller_of(connection, request)
        body = json.loads(request.body) if request.body else None
        method = request.method.decode()
        answer = self._answered(lambda: self.world.change(method, request.route, values, body))
        status = 202 if request.route == "add_task" else 200
        shaped = answer_of(request.route, answer)
        connection.answer(request, status, JSON, AS_JSON.value(shaped))


KEPT = frozenset(
    (
        "console",
        "console_file",
        "open_session",
        "close_session",
        "live",
        "health",
        "ready",
        "metrics_page",
        "document",
    )
)
"""Handlers that stay the real ones."""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
