"""Connects to the primary among the PostgreSQL servers that a location names.

asyncpg tries the hosts of a location one after the other, under one timeout: while the first host
is frozen, it never reaches the second. Here all hosts are tried at once, and the first that answers
as a primary is used.

A primary that was deposed without knowing it still answers, but no commit on it is ever confirmed.
A server on which a statement timed out is therefore tried a moment after the others for a while.

The kernel watches the connections: without keepalive, a connection over a link that was cut stays
silent for ever while it waits for notifications, and for fifteen minutes while it has sent a
statement.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from maitred.errors import CannotStart
from maitred.store.postgres_errors import DEFAULT_PORT, NOT_LET_IN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEEPALIVE_IDLE_SECONDS: Final = 1
"""How long a connection is silent before the kernel asks the server whether it is there."""

KEEPALIVE_INTERVAL_SECONDS: Final = 1
"""How long the kernel waits for an answer before it asks again."""

KEEPALIVE_PROBES: Final = 3
"""After this many questions without an answer the connection is lost: four seconds in all, less
than the lease of a member."""

USER_TIMEOUT_MILLISECONDS: Final = 4_000
"""How long data that was sent may stay unacknowledged before the connection is lost: as long as the
keepalive takes, which is not used while data is unacknowledged."""

DISTRUST_SECONDS: Final = 30.0
"""How long a server is tried after the others because a statement timed out on it."""

HEAD_START_SECONDS: Final = 1.0
"""How much earlier the other servers are tried than one that is distrusted: enough for a login."""

AGAIN_SECONDS: Final = 0.25
"""Interval at which a standby is asked again whether it is the primary by now, while another server
does not answer."""

CANCEL_SECONDS: Final = 2.0
"""How long a connection is kept after a timeout, so that asyncpg can ask the server to cancel the
statement. Otherwise each timeout could leave a statement behind on the server that waits for a
lock or a standby, until the server has no connections left."""

_WRITABLE: Final = ("primary", "read-write")


class ServerPlace(NamedTuple):
    """Where one PostgreSQL server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HostConnection(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection that knows which server of the location it is connected to."""

    __slots__ = ("place",)
    place: ServerPlace | None


class PostgresServers:
    """The servers that a location names, of which one is the primary."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._places = places_of(location)
        self._attributes = _session_attributes(location)
        self._distrusted: dict[ServerPlace, float] = {}
        """Maps servers to the loop time until which they are tried after the others."""
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def several(self) -> bool:
        """Whether another server may be the primary."""
        return len(self._places) > 1

    def __repr__(self) -> str:
        named = ", ".join(map(str, self._places)) or "one server"
        return f"<PostgresServers {named}, {len(self._distrusted)} distrusted>"

    async def connect(self, _location: str = "", *, timeout: float, **more: Any) -> HostConnection:  # noqa: ASYNC109, ANN401
        """Connect to the primary within `timeout` seconds, with the arguments of `asyncpg.connect`;
        suits as `connect` of a pool."""
        more["connection_class"] = HostConnection
        more["target_session_attrs"] = self._attributes
        if not self.several:
            connection = await asyncpg.connect(self._location, timeout=timeout, **more)
            connection.place = self._places[0] if self._places else None
        else:
            connection = await self._first_primary(timeout, more)
        watch_socket(connection)
        return connection  # type: ignore[no-any-return] # asyncpg has no types

    def distrust(self, connection: asyncpg.Connection) -> None:
        """Try the server of this connection after the others for a while: it did not answer."""
        place = getattr(connection, "place", None)
        if place is not None:
            now = asyncio.get_running_loop().time()
            self._distrusted[place] = now + DISTRUST_SECONDS

    def retire(
        self, connection: asyncpg.Connection, release: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Terminate a connection on which a statement timed out, after its cancellation was sent,
        and call `release`; do not wait for it."""
        self.distrust(connection)
        task = asyncio.create_task(_terminate_later(connection, release))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Terminate the connections that timed out at once."""
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(list(self._retiring))

    async def _first_primary(self, timeout: float, more: dict[str, Any]) -> HostConnection:  # noqa: ASYNC109
        """Return the first connection to a primary. While one server has not answered at all, ask
        the others again: one of them may be promoted in the meantime."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout
        tasks = {
            asyncio.create_task(self._dial(one, self._handicap(one, timeout), deadline, more)): one
            for one in self._places
        }
        unanswered = set(self._places)
        failures: dict[ServerPlace, BaseException] = {}
        chosen = None
        try:
            while unanswered and chosen is None:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    place = tasks[task]
                    if (problem := task.exception()) is None:
                        chosen = chosen or task.result()
                        continue
                    del tasks[task]
                    failures[place] = problem
                    unanswered.discard(place)
                    if now() + AGAIN_SECONDS < deadline:
                        again = self._dial(place, AGAIN_SECONDS, deadline, more)
                        tasks[asyncio.create_task(again)] = place
        finally:
            for task in tasks:
                _discard(task, chosen)
        if chosen is None:
            raise min(failures.values(), key=_rank)
        return chosen

    def _handicap(self, place: ServerPlace, timeout: float) -> float:
        """Return how long to wait before this server is tried, in seconds."""
        until = self._distrusted.get(place, 0.0)
        if until > asyncio.get_running_loop().time():
            return min(HEAD_START_SECONDS, timeout / 2)
        self._distrusted.pop(place, None)
        return 0.0

    async def _dial(
        self, place: ServerPlace, wait: float, deadline: float, more: dict[str, Any]
    ) -> HostConnection:
        if wait:
            await asyncio.sleep(wait)
        timeout = max(deadline - asyncio.get_running_loop().time(), 0.0)
        connection: HostConnection = await asyncpg.connect(
            self._location, host=place.host, port=place.port, timeout=timeout, **more
        )
        connection.place = place
        return connection


def places_of(location: str) -> tuple[ServerPlace, ...]:
    """Return the servers that a location or, without hosts in it, the environment names; nothing
    if asyncpg should choose. Raise `ValueError` for an invalid port."""
    parts = urlsplit(location)
    named = parse_qs(parts.query)
    hosts = unquote(parts.netloc.partition("@")[2] if "@" in parts.netloc else parts.netloc)
    hosts = hosts or named.get("host", [""])[-1] or os.environ.get("PGHOST", "")
    if not hosts or "service" in named:
        return ()
    ports = named.get("port", [""])[-1] or os.environ.get("PGPORT", "") or str(DEFAULT_PORT)
    each = hosts.split(",")
    defaults = [int(port) for port in ports.split(",")]
    if len(defaults) == 1:
        defaults *= len(each)
    if len(defaults) != len(each):
        raise ValueError("as many ports as hosts are needed")
    return tuple(_place(one, port) for one, port in zip(each, defaults, strict=True))


def _place(named: str, default: int) -> ServerPlace:
    if named.startswith("/"):
        return ServerPlace(named, default)
    if named.startswith("["):
        host, _, rest = named[1:].partition("]")
        return ServerPlace(host, int(rest[1:]) if rest.startswith(":") else default)
    host, _, port = named.partition(":")
    return ServerPlace(host, int(port) if port else default)


def _session_attributes(location: str) -> str:
    named = parse_qs(urlsplit(location).query).get("target_session_attrs", ["any"])[-1]
    if named not in (*_WRITABLE, "any"):
        raise CannotStart(
            "The store's location names `target_session_attrs` that do not lead to a primary.",
            remedy="Leave `target_session_attrs` out: maitred always looks for the primary.",
        )
    return "primary" if named == "any" else named


def watch_socket(connection: asyncpg.Connection) -> None:
    """Let the kernel find out that the server is gone, where it can: no socket option is
    everywhere, and a Unix socket needs none."""
    found = connection._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way
    if found is None or found.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE_SECONDS),  # the same on macOS
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MILLISECONDS),
    ):
        if (option := getattr(socket, name, None)) is not None:
            found.setsockopt(socket.IPPROTO_TCP, option, value)


async def _terminate_later(
    connection: asyncpg.Connection, release: Callable[[], Awaitable[None]] | None
) -> None:
    try:
        await asyncio.sleep(CANCEL_SECONDS)
    finally:
        connection.terminate()
        if release is not None:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await release()


def _discard(task: asyncio.Task[HostConnection], chosen: HostConnection | None) -> None:
    """Cancel a task that connects; terminate its connection if it was not chosen."""

    def end(ended: asyncio.Task[HostConnection]) -> None:
        if ended.cancelled() or ended.exception() is not None:
            return
        if ended.result() is not chosen:
            ended.result().terminate()

    task.cancel()
    task.add_done_callback(end)


def _rank(problem: BaseException) -> int:
    """Return the place of an error among those of all servers: the one that says most is first."""
    kinds = (NOT_LET_IN, asyncpg.TargetServerAttributeNotMatched, asyncpg.PostgresError)
    for rank, kind in enumerate(kinds):
        if isinstance(problem, kind):
            return rank
    return len(kinds) + isinstance(problem, TimeoutError)
