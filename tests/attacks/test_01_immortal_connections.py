"""Whatever a connection waits for, its clock runs: nobody keeps a place by a strange request."""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest

from maitred.gateway.http import clock
from maitred.gateway.http.clock import WaitState
from maitred.gateway.http.connection import HttpConnection
from maitred.node import patience
from maitred.settings import GatewaySettings, Limits, WorkerSettings
from maitred.worker.gateway_link import GatewayLink
from maitred.worker.query_listener import QueryListener
from tests.gateway.fakes import get, open_door, query, until

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT = b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"
UPGRADES = {
    "connect": CONNECT,
    "connect and more": CONNECT + b"\x16\x03\x01" * 100,
    "h2c": get("/health", "Connection: Upgrade", "Upgrade: h2c"),
    "websocket": get("/health", "Connection: keep-alive, Upgrade", "Upgrade: websocket"),
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}
SHORT: dict[str, Any] = {"header_seconds": 0.4, "body_seconds": 0.4, "idle_seconds": 0.4}


@pytest.mark.parametrize("request_", UPGRADES.values(), ids=UPGRADES.keys())
def test_a_request_for_another_protocol_is_answered_and_the_connection_ends(
    request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "LINGER_SECONDS", 0.1)

    async def scenario() -> None:
        async with open_door(**SHORT) as place:
            caller = await place.dial()
            caller.send(request_)
            assert (await caller.answer()).headers["connection"] == "close"
            await until(lambda: not place.door.connections, "the connection is gone")
            caller.close()

    asyncio.run(scenario())


def test_sixty_of_them_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LINGER_SECONDS", 0.1)

    async def scenario() -> None:
        async with open_door(connections=60, **SHORT) as place:
            silent = [await place.dial() for _ in range(60)]
            for caller in silent:
                caller.send(CONNECT)
            await until(lambda: place.door.metrics.accepted == 60, "all are there")
            await until(lambda: not place.door.connections, "all are gone")
            caller = await place.dial()
            caller.send(query("echo", b"[1]"))
            assert (await caller.answer()).body == b"1"
            for one in (*silent, caller):
                one.close()

    asyncio.run(scenario())


def test_every_state_of_an_http_connection_has_a_limit() -> None:
    limits = clock.limits(GatewaySettings())
    assert limits.keys() == set(WaitState)
    assert all(0 < seconds < 2 * 86_400 for seconds in limits.values())


def test_every_state_of_a_native_connection_has_a_limit() -> None:
    assert patience.LIMITS.keys() == set(patience.Awaits)
    assert all(isfinite(limit(Limits())) for limit in patience.LIMITS.values())


class Wire:
    """A transport whose caller does nothing at all, not even close."""

    def __init__(self) -> None:
        self.ended = ""
        self.unsent = 0
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        """A transport with something unsent would wait for ever."""

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The caller does not mind."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("192.0.2.1", 1)

    def set_write_buffer_limits(self, **_: int) -> None: ...


class _Clock:
    """The loop, with a time of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, time: Callable[[], float]) -> None:
        self.time = time
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._loop, name)


def _login_begins(connection: HttpConnection, _: Wire) -> None:
    async def never() -> bool:
        await asyncio.get_running_loop().create_future()
        return True

    cast("Any", connection.listener).admit = lambda *_: None
    cast("Any", connection.listener).admit_later = lambda *_: never()
    connection.data_received(query("echo", b"[1, 2]")[:-2])


def _caller_does_not_read(connection: HttpConnection, wire: Wire) -> None:
    wire.unsent = 1_000_000
    connection.pause_writing()


def _closes_with_something_unsent(connection: HttpConnection, wire: Wire) -> None:
    wire.unsent = 1_000
    connection.data_received(get("/health", "Connection: close"))


STATES: dict[str, tuple[WaitState, Callable[[HttpConnection, Wire], None]]] = {
    "nothing": (WaitState.REQUEST, lambda *_: None),
    "head": (WaitState.HEAD, lambda one, _: one.data_received(b"GET /hea")),
    "login": (WaitState.LOGIN, _login_begins),
    "body": (WaitState.BODY, lambda one, _: one.data_received(query("echo", b"[1, 2]")[:-2])),
    "answer": (WaitState.ANSWER, lambda one, _: one.data_received(query("hang"))),
    "head behind an answer": (
        WaitState.HEAD,
        lambda one, _: one.data_received(query("hang") + b"GET /hea"),
    ),
    "body behind an answer": (
        WaitState.BODY,
        lambda one, _: one.data_received(query("hang") + query("echo", b"[1, 2]")[:-2]),
    ),
    "continue behind an answer": (
        WaitState.ANSWER,
        lambda one, _: one.data_received(
            query("hang") + query("echo", b"[1]", "Expect: 100-continue")[:-3]
        ),
    ),
    "caller": (WaitState.CALLER, _caller_does_not_read),
    "close": (
        WaitState.CLOSE,
        lambda one, _: one.data_received(get("/health", "Connection: close")),
    ),
    "connect": (WaitState.CLOSE, lambda one, _: one.data_received(CONNECT)),
    "garbage": (WaitState.CLOSE, lambda one, _: one.data_received(b"\x00\x01garbage\r\n\r\n")),
    "close with something unsent": (WaitState.CALLER, _closes_with_something_unsent),
}


def test_the_states_below_are_all_there_are() -> None:
    assert {waits for waits, _ in STATES.values()} == set(WaitState)


@pytest.mark.parametrize("name", STATES)
def test_a_connection_that_does_nothing_more_ends(name: str) -> None:
    """The caller does nothing from here on, and neither does the gateway; only time passes."""
    waits, lead = STATES[name]

    async def scenario() -> None:
        async with open_door() as place:
            now = 1_000.0
            place.door.loop = cast("Any", _Clock(place.door.loop, lambda: now))
            wire = Wire()
            connection = HttpConnection(place.door)
            connection.connection_made(cast("Any", wire))
            lead(connection, wire)
            connection.release()
            assert connection.waits is waits
            for _ in range(len(WaitState)):
                connection.look_at_clock(now)
                now += place.door.limits[connection.waits] + 1
                connection.look_at_clock(now)
            assert wire.ended == "aborted"
            connection.connection_lost(None)
            assert [budget.held for budget in place.door.budgets.all()] == [0, 0, 0, 0]
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_body_that_comes_drop_by_drop_is_refused() -> None:
    """Each byte is progress, and the time for the whole body counts all the same."""

    async def scenario() -> None:
        async with open_door(**SHORT) as place:
            caller = await place.dial()
            caller.send(query("echo", b"[" + b" " * 1_000_000 + b"]")[:-1_000_001])
            answered = asyncio.ensure_future(caller.head())
            while not answered.done():
                caller.send(b" ")
                await asyncio.sleep(0.01)
            assert (await answered).status == 408
            caller.close()

    asyncio.run(scenario())


def a_door(settings: WorkerSettings) -> QueryListener:
    context = MagicMock(settings=settings, session=bytes(16))
    return QueryListener(context, MagicMock(), bytes, MagicMock())


def test_a_gateway_that_says_nothing_more_to_a_worker_is_disconnected() -> None:
    async def scenario() -> None:
        settings = WorkerSettings()
        door = a_door(settings)
        link = GatewayLink(door)
        wire = Wire()
        link.connection_made(cast("Any", wire))
        link.ready = True
        opened = link.arrived_at
        closing = []
        for more in (-1, 1):
            link.look_at_clock(opened + settings.link_idle_seconds + more, settings)
            closing.append(link.closing)
        assert closing == [False, True]
        link.connection_lost(None)
        assert door._sweep is not None
        door._sweep.cancel()

    asyncio.run(scenario())


def test_a_fault_at_one_link_is_not_the_end_of_all_limits() -> None:
    async def scenario() -> None:
        door = a_door(WorkerSettings())
        broken = MagicMock()
        broken.look_at_clock.side_effect = ZeroDivisionError
        assert door.entered(broken)
        with pytest.raises(ZeroDivisionError):
            door._look_at_clocks()
        assert door._sweep is not None
        assert not door._sweep.cancelled()
        door._sweep.cancel()

    asyncio.run(scenario())
