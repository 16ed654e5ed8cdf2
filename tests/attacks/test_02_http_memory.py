"""What strangers and users can make a gateway keep of their HTTP requests, counted in bytes."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.gateway.http import budget, listener
from maitred.gateway.http.connection import PIPELINED_MAX, HttpConnection
from maitred.gateway.http.heads import CHUNKS_MAX
from maitred.gateway.http.reader import (
    CHUNKED_PORTION_BYTES,
    DISCARDED_MAX,
    TURN_PIECES,
    TURN_REQUESTS,
)
from maitred.settings import GatewaySettings, Node, User
from tests.gateway.fakes import Answer, Caller, Opened, get, open_door, post, query, until
from tests.gateway.test_users import basic
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from maitred.gateway.http.request import HttpRequest

ECHO = "/v1/default/queues/echo/query"
LARGE = 100_000
ALICE = basic("alice", "open sesame")


def with_users(**gateway: Any) -> Node:  # noqa: ANN401
    return Node(
        gateway=GatewaySettings(port=0, **gateway),
        users={
            "alice": User(secret=cheaply("open sesame"), permissions={"*": ["query"]}),
            "bob": User(secret=cheaply("b"), permissions={"other": ["query"]}),
        },
    )


def unfinished(*headers: str, size: int = LARGE) -> bytes:
    """A query one byte short of its end."""
    return query("echo", b'["%b"]' % (b"x" * (size - 4)), *headers)[:-1]


def held(place: Opened) -> dict[str, int]:
    return {one.setting: one.held for one in place.door.budgets.all()}


NOTHING = {"stranger_bytes": 0, "partial_bytes": 0, "under_way_bytes": 0, "unsent_bytes": 0}


async def refused(caller: Caller) -> Answer:
    answer = await caller.answer()
    assert answer.headers["connection"] == "close"
    return answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 401),
        (("Authorization: Basic %%%",), 401),
        ((basic("alice", "wrong"),), 401),
        ((basic("bob", "b"),), 403),
        ((ALICE, "Content-Encoding: gzip"), 415),
        ((ALICE, "Content-Type: text/plain"), 415),
        ((ALICE, "Origin: https://evil.example"), 403),
    ],
)
def test_a_request_that_its_head_refuses_gets_nothing_of_its_body_kept(
    headers: tuple[str, ...], status: int
) -> None:
    async def scenario() -> None:
        async with open_door(with_users()) as place:
            caller = await place.dial()
            caller.send(unfinished(*headers))
            assert (await refused(caller)).status == status
            assert held(place) == NOTHING
            caller.close()

    asyncio.run(scenario())


def test_nor_does_one_for_a_path_that_is_not_there_or_takes_no_body() -> None:
    async def scenario() -> None:
        async with open_door(with_users()) as place:
            nowhere = await place.dial()
            nowhere.send(unfinished(ALICE).replace(b"/query", b"/nowhere"))
            assert (await refused(nowhere)).status == 404
            health = await place.dial()
            health.send(get("/health", f"Content-Length: {LARGE}") + b"x" * (LARGE - 1))
            await until(lambda: place.door.metrics.bytes_in > 2 * LARGE, "all of it arrived")
            assert held(place)["partial_bytes"] < 1_000
            health.send(b"x")
            assert (await health.answer()).status == 200
            assert held(place) == NOTHING
            nowhere.close()
            health.close()

    asyncio.run(scenario())


def test_a_small_body_of_a_refused_request_is_thrown_away_and_the_connection_goes_on() -> None:
    async def scenario() -> None:
        async with open_door(with_users()) as place:
            caller = await place.dial()
            whole = query("echo", b'["%b"]' % (b"x" * (DISCARDED_MAX - 4)))
            caller.send(whole[:-4])
            await until(lambda: place.door.metrics.bytes_in == len(whole) - 4, "it arrived")
            assert sum(held(place).values()) < 1_000
            caller.send(whole[-4:])
            answer = await caller.answer()
            assert (answer.status, "connection" in answer.headers) == (401, False)
            caller.send(query("echo", b"[1]", ALICE))
            assert (await caller.answer()).body == b"1"
            assert not place.asking.asked[1:]
            caller.close()

    asyncio.run(scenario())


def test_a_refused_caller_who_goes_on_sending_is_cut_off() -> None:
    """What he had begun to send is taken and thrown away, as much as the largest body has."""

    async def scenario() -> None:
        async with open_door(with_users(body_bytes=2 * LARGE)) as place:
            caller = await place.dial()
            caller.send(unfinished())
            assert (await refused(caller)).status == 401
            (connection,) = place.door.connections
            connection.data_received(b"x" * LARGE)
            assert not connection.transport.is_closing()
            connection.data_received(b"x" * (LARGE + 1))
            assert connection.transport.is_closing()
            await until(lambda: not place.door.connections, "it is gone")
            caller.close()

    asyncio.run(scenario())


def test_nothing_more_is_read_while_a_secret_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with open_door(with_users()) as place:
            known = asyncio.get_running_loop().create_future()
            authenticator = place.gateway.guard.authenticator
            authenticate = authenticator.authenticate

            async def slowly(*arguments: Any) -> Any:  # noqa: ANN401
                await known
                return await authenticate(*arguments)

            monkeypatch.setattr(authenticator, "authenticate", slowly)
            caller = await place.dial()
            head, _, body = query("echo", b'["%b"]' % (b"x" * 2_000_000), ALICE).partition(b'["')
            caller.send(head)
            await until(lambda: bool(place.door.connections), "the connection")
            (connection,) = place.door.connections
            await until(lambda: connection.waits.name == "LOGIN", "the head arrived")
            caller.send(b'["' + body)
            for _ in range(100):  # turns of the loop in which it could be read
                await asyncio.sleep(0)
            assert sum(held(place).values()) < 1_000
            known.set_result(None)
            assert len((await caller.answer()).body) == 2_000_002
            assert held(place) == NOTHING
            caller.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("users", [True, False])
def test_unfinished_bodies_have_one_limit_together(users: bool) -> None:
    """Each below its own limit; a small query of a bystander is answered meanwhile."""

    async def scenario() -> None:
        limit: dict[str, Any] = {"partial_bytes": 5 * LARGE, "stranger_bytes": LARGE}
        settings = with_users(**limit) if users else Node(gateway=GatewaySettings(port=0, **limit))
        headers = (ALICE,) if users else ()
        async with open_door(settings) as place:
            bystander = await place.dial()
            bystander.send(query("echo", b"[0]", *headers))
            assert (await bystander.answer()).body == b"0"
            attackers = [await place.dial() for _ in range(12)]
            for caller in attackers:
                caller.send(unfinished(*headers))
            await until(lambda: place.door.metrics.memory_refused >= 8, "the others are refused")
            assert 3 * LARGE < held(place)["partial_bytes"] <= 5 * LARGE
            assert held(place)["stranger_bytes"] <= LARGE
            for number in range(3):
                bystander.send(query("echo", b"[%d]" % number, *headers))
                assert (await bystander.answer()).body == b"%d" % number
            told = [event for event, _ in place.lines if event.startswith("too much memory")]
            assert len(told) <= 2
            for caller in attackers:
                caller.close()
            await until(lambda: held(place) == NOTHING, "it comes back")
            bystander.close()

    asyncio.run(scenario())


def test_strangers_cannot_take_the_room_of_those_who_were_let_in() -> None:
    """Unfinished heads fill the strangers' limit; the body of a user still finds its own."""

    async def scenario() -> None:
        settings = with_users(stranger_bytes=LARGE, partial_bytes=LARGE + 5_000)
        async with open_door(settings) as place:
            user = await place.dial()
            user.send(query("echo", b"[0]", ALICE))
            assert (await user.answer()).body == b"0"
            strangers = [await place.dial() for _ in range(30)]
            for caller in strangers:
                caller.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5_000)
            await until(lambda: place.door.metrics.memory_refused >= 15, "the others are refused")
            assert LARGE / 2 < held(place)["stranger_bytes"] <= LARGE
            assert held(place)["partial_bytes"] == 0
            whole = query("echo", b'["%b"]' % (b"x" * (LARGE - 4)), ALICE)
            user.send(whole[:-1])
            await until(lambda: held(place)["partial_bytes"] >= LARGE - 1, "the body arrived")
            user.send(whole[-1:])
            assert len((await user.answer()).body) == LARGE - 2
            for caller in (user, *strangers):
                caller.close()

    asyncio.run(scenario())


def test_the_refused_are_told_so() -> None:
    async def scenario() -> None:
        async with open_door(partial_bytes=LARGE // 2) as place:
            caller = await place.dial()
            caller.send(unfinished())
            answer = await refused(caller)
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert "gateway.partial_bytes" in json.loads(answer.body)["error"]["remedy"]
            caller.close()

    asyncio.run(scenario())


class Wire:
    """A transport that takes everything."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.paused: object = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("192.0.2.1", 1)

    def set_write_buffer_limits(self, **_: int) -> None: ...


def kept_for(pieces: list[bytes]) -> tuple[int, int]:
    """Return how many bytes of memory one connection takes after these, and how many it counts."""

    async def scenario() -> tuple[int, int]:
        async with open_door() as place:
            connection = HttpConnection(place.door)
            connection.connection_made(cast("Any", Wire()))
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                for piece in pieces:
                    connection.data_received(piece)
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            counted = sum(held(place).values())
            connection.connection_lost(None)
            assert held(place) == NOTHING
            return after - before, counted

    return asyncio.run(scenario())


def test_a_chunked_body_costs_what_it_holds() -> None:
    """Two-byte chunks were a Python object each, and 28 times as large."""
    head = post(
        ECHO, b"", "Transfer-Encoding: chunked", "Content-Type: application/json", length=False
    )
    size = 100_000
    memory, counted = kept_for([head, *[b"2\r\nxx\r\n" * 500] * (size // 1000)])
    assert size <= counted < size + 1_000
    assert memory < 1.5 * size


def test_a_body_in_too_many_chunks_is_refused() -> None:
    """Each chunk costs time, however short it is."""

    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            headers = ("Transfer-Encoding: chunked", "Content-Type: application/json")
            caller.send(post(ECHO, b"", *headers, length=False))
            caller.send(b"1\r\nx\r\n" * (CHUNKS_MAX + 1))
            answer = await refused(caller)
            assert answer.status == 413
            assert "chunks" in json.loads(answer.body)["error"]["message"]
            caller.close()

    asyncio.run(scenario())


def test_a_head_costs_about_what_it_holds() -> None:
    """Thousands of headers with two letters each would be thousands of objects."""
    lines = b"".join(b"%x:y\r\n" % number for number in range(4_000))
    memory, _ = kept_for([b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines])
    assert memory < 100_000


def test_pipelined_requests_are_kept_as_the_bytes_they_came_as() -> None:
    """One read holds thousands of requests, and their caller takes no answer."""
    many = get("/health") * 6_000
    wait = query("hang")
    memory, counted = kept_for([wait, many])
    assert len(many) * 0.9 < counted < len(many) + 5_000
    assert memory < len(many) + PIPELINED_MAX * 10_000 + 100_000


def test_a_connection_with_thousands_of_requests_waits_for_its_turn() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            served: list[HttpRequest] = []
            serve = place.door.serve

            def counting(connection: HttpConnection, request: HttpRequest) -> None:
                served.append(request)
                serve(connection, request)

            place.door.serve = counting  # type: ignore[method-assign]
            wire = Wire()
            connection = HttpConnection(place.door)
            connection.connection_made(cast("Any", wire))
            connection.data_received(get("/health") * 5_000)
            assert wire.paused
            assert len(served) < 2 * TURN_REQUESTS + 10  # and what was in the same portion
            answers = wire.written.count
            await until(lambda: answers(b"HTTP/1.1 200 OK") == 5_000, "all are answered")
            assert len(served) == 5_000
            assert [wire.paused] == [False]
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_connection_with_thousands_of_chunks_waits_for_its_turn() -> None:
    """A read of 64 KiB in chunks of one byte is ten thousand calls, and others wait meanwhile."""

    async def scenario() -> None:
        async with open_door() as place:
            wire = Wire()
            connection = HttpConnection(place.door)
            connection.connection_made(cast("Any", wire))
            headers = ("Transfer-Encoding: chunked", "Content-Type: application/json")
            connection.data_received(post(ECHO, b"", *headers, length=False))
            connection.data_received(b"1\r\nx\r\n" * 10_000)
            assert wire.paused
            portion = CHUNKED_PORTION_BYTES // len(b"1\r\nx\r\n") + 1
            assert 0 < connection._chunks < TURN_PIECES + portion
            await until(lambda: connection._chunks == 10_000, "all are parsed")
            await until(lambda: not wire.paused, "more is read")
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_complete_bodies_that_wait_for_an_answer_have_a_limit_together() -> None:
    async def scenario() -> None:
        async with open_door(under_way_bytes=3 * LARGE) as place:
            body = b'["%b"]' % (b"x" * (LARGE - 4))
            callers = [await place.dial() for _ in range(5)]
            for number, caller in enumerate(callers[:3]):
                caller.send(query("hang", body))
                await until(lambda n=number: len(place.asking.asked) > n, "it arrived")  # type: ignore[misc]
            callers[3].send(query("hang", body))
            answer = await callers[3].answer()
            assert (answer.status, "connection" in answer.headers) == (429, False)
            callers[4].send(query("echo", b"[1]"))  # a small one finds its place
            assert (await callers[4].answer()).body == b"1"
            assert held(place)["under_way_bytes"] == 3 * LARGE
            for caller in callers:
                caller.close()
            await until(lambda: held(place) == NOTHING, "it comes back")

    asyncio.run(scenario())


def test_answers_that_nobody_takes_have_a_limit_together() -> None:
    async def scenario() -> None:
        async with open_door(unsent_bytes=600_000) as place:
            callers = [await place.dial() for _ in range(20)]
            for caller in callers:
                cast("Any", caller.reader)._transport.pause_reading()
                caller.send(query("endless"))
            await until(lambda: place.door.metrics.memory_refused > 0, "some are cut off")
            assert held(place)["unsent_bytes"] <= 600_000
            for caller in callers:
                caller.writer.transport.abort()
            await until(lambda: held(place) == NOTHING, "it comes back")

    asyncio.run(scenario())


def test_memory_goes_back_to_the_kernel_after_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(budget, "give_back", lambda: given.append(1))
    budgets = budget.Budgets(GatewaySettings())
    for count in (0, budget.TRIM_BYTES, budget.TRIM_BYTES // 2 + 1):
        budgets.partial.held = count
        budgets.look()
    assert not given
    for count in (budget.TRIM_BYTES // 2, 0, 0):
        budgets.partial.held = count
        budgets.look()
    assert given == [1]


def test_the_listener_looks_again_and_again_whether_memory_is_to_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(budget, "give_back", lambda: given.append(1))
    monkeypatch.setattr(budget, "TRIM_BYTES", LARGE // 2)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.01)

    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(unfinished())
            await until(lambda: place.door.budgets._peak >= LARGE // 2, "the flood is seen")
            assert not given
            caller.close()
            await until(lambda: bool(given), "the memory goes back")

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [401, 200])
def test_who_asks_whether_to_send_a_body_is_told_before(status: int) -> None:
    async def scenario() -> None:
        async with open_door(with_users()) as place:
            caller = await place.dial()
            headers = (ALICE,) if status == 200 else ()
            whole = query("echo", b"[1]", *headers, "Expect: 100-continue")
            caller.send(whole[:-3])
            assert (await caller.head()).status == (100 if status == 200 else 401)
            if status == 200:
                caller.send(whole[-3:])
                assert (await caller.answer()).body == b"1"
            caller.close()

    asyncio.run(scenario())
