"""Answers of one turn of the loop are written together, at its end, and in order all the same."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import MagicMock

from maitred.gateway.http.budget import Budgets
from maitred.gateway.http.connection import HttpConnection
from maitred.gateway.http.listener import HttpListener
from maitred.settings import GatewaySettings
from tests.node.in_process import in_a_loop

GET = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


class Wire:
    """A transport that remembers what was done to it; several share one list."""

    def __init__(self, name: str, done: list[tuple[str, str]]) -> None:
        self.name = name
        self.done = done
        self.fails = False

    def write(self, data: bytes) -> None:
        if self.fails:
            raise RuntimeError("it cannot")
        self.done.append((self.name, data.rpartition(b"\r\n")[2].decode()))

    def close(self) -> None:
        self.done.append((self.name, "closed"))

    def abort(self) -> None:
        self.done.append((self.name, "aborted"))

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, **_: int) -> None:
        """Nothing is buffered here."""


class Scene:
    """A door, and connections whose requests are answered when the test says so."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.requests: dict[HttpConnection, list[Any]] = {}
        self.log = MagicMock()
        self.door = HttpListener()
        self.door.settings = GatewaySettings()
        self.door.budgets = Budgets(self.door.settings)
        self.door.guard = MagicMock(required=False)
        self.door.log = self.log
        cast("Any", self.door).serve = self.serve

    def serve(self, connection: HttpConnection, request: object) -> None:
        self.requests.setdefault(connection, []).append(request)

    def connected(self, name: str) -> HttpConnection:
        connection = HttpConnection(self.door)
        connection.connection_made(cast("Any", Wire(name, self.done)))
        return connection

    def answer(self, connection: HttpConnection, body: str) -> None:
        request = self.requests[connection].pop(0)
        connection.answer(request, 200, b"text/plain", body.encode())


@in_a_loop
async def test_answers_of_one_turn_are_written_at_its_end() -> None:
    scene = Scene()
    one, other = scene.connected("one"), scene.connected("other")
    for connection in (one, other):
        connection.data_received(GET)
    scene.answer(one, "1")
    scene.answer(other, "2")
    assert scene.done == []
    await asyncio.sleep(0)
    assert scene.done == [("one", "1"), ("other", "2")]


@in_a_loop
async def test_a_second_answer_in_the_same_turn_comes_after_the_first() -> None:
    scene = Scene()
    one = scene.connected("one")
    for number in "123":
        one.data_received(GET)
        scene.answer(one, number)
    assert scene.done == [("one", "1"), ("one", "2")]
    await asyncio.sleep(0)
    assert scene.done == [("one", "1"), ("one", "2"), ("one", "3")]


@in_a_loop
async def test_a_connection_that_ends_has_its_answer_before() -> None:
    scene = Scene()
    asked, left, drained, cut = (scene.connected(name) for name in "abcd")
    asked.data_received(LAST)
    for connection in (left, drained, cut):
        connection.data_received(GET)
    for number, connection in enumerate((asked, left, drained, cut)):
        scene.answer(connection, str(number))
    assert scene.done == [("a", "0"), ("a", "closed")]
    left.eof_received()
    drained.drain()
    scene.door.close()
    assert scene.done[2:5] == [("b", "1"), ("c", "2"), ("c", "closed")]
    assert ("d", "3") in scene.done
    assert scene.done.index(("d", "3")) < scene.done.index(("d", "aborted"))
    written = len(scene.done)
    await asyncio.sleep(0)
    assert len(scene.done) == written, "nothing is written twice"


@in_a_loop
async def test_nothing_is_written_to_whoever_is_gone() -> None:
    scene = Scene()
    one = scene.connected("one")
    one.data_received(GET)
    scene.answer(one, "1")
    one.connection_lost(None)
    await asyncio.sleep(0)
    assert scene.done == []


@in_a_loop
async def test_one_that_cannot_be_written_to_does_not_keep_the_others_from_theirs() -> None:
    scene = Scene()
    broken, other = scene.connected("broken"), scene.connected("other")
    cast("Wire", broken.transport).fails = True
    for connection in (broken, other):
        connection.data_received(GET)
        scene.answer(connection, "x")
    await asyncio.sleep(0)
    assert scene.done == [("broken", "aborted"), ("other", "x")]
    assert scene.log.exception.called
