"""Requests and answers over real sockets, byte by byte; behind the door is a fake."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import msgpack

from maitred.errors import RemoteError
from tests.gateway.fakes import (
    PLAIN,
    REFUSED,
    Answer,
    FakeNode,
    Opened,
    get,
    open_door,
    post,
    query,
    until,
)
from tests.monitor.scraping import parsed

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient

PACKED = "Content-Type: application/msgpack"
UNSUPPORTED = "unsupported-media-type"


async def ask(place: Opened, request: bytes) -> Answer:
    caller = await place.dial()
    try:
        caller.send(request)
        return await caller.answer()
    finally:
        caller.close()


def asked(request: bytes, **settings: Any) -> Answer:  # noqa: ANN401
    async def scenario() -> Answer:
        async with open_door(**settings) as place:
            return await ask(place, request)

    return asyncio.run(scenario())


def error(answer: Answer) -> dict[str, Any]:
    packed = answer.headers["content-type"] == "application/msgpack"
    read: Any = msgpack.decode if packed else json.loads
    found: dict[str, Any] = read(answer.body)["error"]
    assert found.keys() >= {"code", "message", "remedy"}
    return found


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (b'["a", 1]', ["a", 1]),
        (b'{"text": "a"}', {"text": "a"}),
        (b'"a"', ["a"]),
        (b"17", [17]),
        (b"null", [None]),
        (b"", []),
    ],
)
def test_a_body_is_the_arguments(body: bytes, arguments: object) -> None:
    answer = asked(query("all", body))
    assert answer.status == 200
    assert json.loads(answer.body) == arguments
    assert answer.headers["maitred-query"] == "1"
    assert answer.headers["maitred-worker"] == "fake worker"
    assert answer.headers["date"].endswith("GMT")


@pytest.mark.parametrize(
    ("body", "arguments"),
    [([1, b"bytes"], [1, b"bytes"]), ({"a": 1}, {"a": 1}), ("x", ["x"]), (None, [None])],
)
def test_msgpack_goes_through_as_it_is(body: object, arguments: object) -> None:
    request = query("all", msgpack.encode(body), "Content-Type: application/msgpack")
    answer = asked(request)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgpack.decode(answer.body) == arguments


def test_the_answer_is_written_as_the_caller_takes_it() -> None:
    packed = asked(query("all", b"[1]", "Accept: application/msgpack"))
    assert msgpack.decode(packed.body) == [1]
    plain = query(
        "all",
        msgpack.encode([1]),
        "Content-Type: application/msgpack",
        "Accept: text/html;q=0.9, application/json",
    )
    assert asked(plain).body == b"[1]"
    events = asked(query("all", b"[1]", "Accept: text/event-stream"))
    assert events.headers["content-type"] == "text/event-stream"
    assert events.body == b"data: [1]\n\nevent: end\ndata: \n\n"
    refused = asked(query("all", b"[1]", "Accept: image/png"))
    assert refused.status == 406
    assert error(refused)["code"] == "not-acceptable"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (query("all", b"[1"), 400, "invalid-arguments"),
        (query("all", b"[" * 100_000), 400, "invalid-arguments"),
        (query("all", b"[123456789012345678901234567890]"), 400, "invalid-arguments"),
        (query("all", b"\xc1", PACKED), 400, "invalid-arguments"),
        (query("all", b"\x81\x01\x02", PACKED), 400, "invalid-arguments"),
        (query("all", b"x", "Content-Type: text/plain"), 415, UNSUPPORTED),
        (query("all", b"x", "Content-Type: application/json; charset=x"), 415, UNSUPPORTED),
        (query("a:b"), 400, "invalid-name"),
        (query("%ff"), 400, "invalid-argument"),
        (query("all", b"", "Maitred-Timeout: soon"), 400, "invalid-argument"),
        (query("all", b"", "Maitred-Timeout: nan"), 400, "invalid-argument"),
        (query("all", b"", "Maitred-Priority: 5"), 400, "invalid-argument"),
        (query("all", b"", "Maitred-Idempotent: perhaps"), 400, "invalid-argument"),
        (query("all", b"", "Maitred-Do-Not-Queue: perhaps"), 400, "invalid-argument"),
        (post("/v1/default/queues/all/query?delay=1"), 400, "invalid-argument"),
        (query("unknown"), 404, "unknown-queue"),
        (get("/nowhere"), 404, "unknown-route"),
        (get("/v1/default/queues/all/query"), 405, "method-not-allowed"),
        (get("/v1/default/queries/x", method="DELETE"), 400, "invalid-argument"),
        (get("/v1/default/queries/99", method="DELETE"), 404, "unknown-query"),
        (get("/v1/default/queries?status=odd"), 400, "invalid-argument"),
        (get("/v1/default/queries?colour=red"), 400, "unknown-choice"),
        (get("/v1/default/queues/all/tasks/0/x"), 400, "invalid-argument"),
        (query("full"), 429, "overloaded"),
        (query("fail"), 500, "query-failed"),
        (query("bug"), 500, "internal-error"),
        (query("nobody"), 503, "no-worker"),
        (query("late"), 504, "deadline-exceeded"),
        (query("ext"), 406, "unserialisable-result"),
        (post("/v1/default/queues/all/tasks", b"[]"), 503, "unavailable"),
    ],
)  # fmt: skip
def test_errors_have_a_status_a_code_and_a_sentence(
    request_: bytes, status: int, code: str
) -> None:
    answer = asked(request_)
    found = error(answer)
    assert (answer.status, found["code"]) == (status, code)
    assert found["message"]


def test_what_goes_with_some_errors() -> None:
    assert asked(query("full")).headers["retry-after"] == "3"
    assert asked(query("nobody")).headers["retry-after"] == "1"
    assert asked(get("/v1/default/queues/all/query")).headers["allow"] == "POST"
    assert asked(get("/health", method="PUT")).headers["allow"] == "GET, HEAD"


def test_a_handlers_own_error_is_told_apart_and_its_traceback_is_not_shown() -> None:
    found = error(asked(query("fail")))
    assert (found["kind"], found["message"]) == ("ValueError", "no")
    assert "traceback" not in found
    assert error(asked(query("fail"), tracebacks=True))["traceback"] == "line 1"


def test_wishes_travel_with_the_query() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            headers = ("Maitred-Timeout: 2.5", "Maitred-Priority: 0", "Maitred-Idempotent: true")
            before = place.door.loop.time()
            await ask(place, query("all", b"[1]", *headers))
            (running,) = place.asking.asked
            assert (running.ask.priority, running.ask.idempotent) == (0, True)
            assert before + 2.5 <= running.ask.deadline <= place.door.loop.time() + 2.5
            assert running.ask.connection.startswith("http 127.0.0.1:")
            assert running.ask.rows
            await ask(place, query("all", b"[1]", "Accept: application/json"))
            assert not place.asking.asked[1].ask.rows  # it takes one document only
            await ask(place, query("all", b"[1]", "Maitred-Do-Not-Queue: true"))
            assert [one.ask.do_not_queue for one in place.asking.asked] == [False, False, True]

    asyncio.run(scenario())


def test_names_may_have_anything_that_names_may_have() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            await ask(place, query("a%2Fb%20%C3%A4", b"[1]"))
            assert place.asking.asked[0].ask.queue == "a/b ä"

    asyncio.run(scenario())


def test_head_has_no_body_and_keeps_the_connection() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(get("/health", method="HEAD"))
            assert (await caller.answer(has_body=False)).headers["content-length"] == "18"
            caller.send(get("/health"))
            assert json.loads((await caller.answer()).body) == {"status": "alive"}
            caller.close()

    asyncio.run(scenario())


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            many = 200
            caller.send(b"".join(query("echo", b"[%d]" % number) for number in range(many)))
            for number in range(many):
                assert (await caller.answer()).body == b"%d" % number
            caller.close()

    asyncio.run(scenario())


def test_a_request_in_single_bytes() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            for byte in query("echo", b'["slow"]'):
                caller.send(bytes((byte,)))
                await caller.writer.drain()
            assert (await caller.answer()).body == b'"slow"'
            caller.close()

    asyncio.run(scenario())


def test_a_body_in_chunks_with_trailers() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            head = post(
                "/v1/default/queues/echo/query",
                b"",
                "Transfer-Encoding: chunked",
                "Content-Type: application/json",
                length=False,
            )
            caller.send(head + b'3\r\n["a\r\n4;x=y\r\nbc"]\r\n0\r\nExtra: 1\r\n\r\n')
            assert (await caller.answer()).body == b'"abc"'
            caller.send(query("echo", b"[2]"))
            assert (await caller.answer()).body == b"2"
            caller.close()

    asyncio.run(scenario())


def test_who_expects_to_be_told_to_go_on_is_told() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            request = query("echo", b"[1]", "Expect: 100-continue")
            head, _, body = request.partition(b"\r\n\r\n")
            caller.send(head + b"\r\n\r\n")
            assert (await caller.head()).status == 100
            caller.send(body)
            assert (await caller.answer()).body == b"1"
            caller.send(query("echo", b"[1]", "Expect: money"))
            assert (await caller.answer()).status == 417
            caller.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("keep", [False, True])
def test_http_1_0_gets_no_chunks(keep: bool) -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            extra = b"Connection: keep-alive\r\n" if keep else b""
            start = b"POST /v1/default/queues/%b/query HTTP/1.0\r\n" + extra
            tail = b"Content-Type: application/json\r\nContent-Length: 3\r\n\r\n[2]"
            caller.send(start % b"echo" + tail)
            answer = await caller.answer()
            assert answer.body == b"2"
            assert answer.headers["connection"] == ("keep-alive" if keep else "close")
            if not keep:
                assert await caller.rest() == b""
                caller.close()
                caller = await place.dial()
            caller.send(start % b"rows" + tail)
            answer = await caller.answer()
            assert "transfer-encoding" not in answer.headers
            assert answer.body == b'[0,"xxxxx"]\n[1,"xxxxx"]\n'
            caller.close()

    asyncio.run(scenario())


def test_an_upgrade_is_not_taken_up_but_its_request_is_answered() -> None:
    answer = asked(get("/health", "Connection: Upgrade", "Upgrade: h2c"))
    assert answer.status == 200
    assert answer.headers["connection"] == "close"
    # Of a body, the parser would make the other protocol's first words.
    assert asked(query("echo", b"[1]", "Connection: Upgrade", "Upgrade: h2c")).status == 505


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no Host
        b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
        post("/x", b"", "Content-Length: 5", "Transfer-Encoding: chunked", length=False),
        post("/x", b"", "Content-Length: 5", "Content-Length: 6", length=False),
        post("/x", b"", "Content-Length: 5", "Content-Length: 5", length=False),
        post("/x", b"", "Content-Length: +5", length=False),
        post("/x", b"", "Transfer-Encoding: chunked, chunked", length=False),
        post("/x", b"", "Transfer-Encoding: gzip, chunked", length=False),
        post("/x", b"", "Transfer-Encoding: chunked", length=False) + b"x\r\n",
        b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_request_or_could_be_two_is_refused_and_closed(raw: bytes) -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(raw)
            answer = await caller.answer()
            assert answer.status == 400, answer
            assert answer.headers["connection"] == "close"
            assert error(answer)["code"] == "malformed-request"
            assert await caller.rest() == b""
            caller.close()
            assert (await ask(place, query("echo", b"[1]"))).body == b"1"

    asyncio.run(scenario())


def test_garbage_is_logged_once() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            for _ in range(5):
                assert (await ask(place, b"\x00\x01garbage\r\n\r\n")).status == 400
            told = [fields for event, fields in place.lines if event == "no http on the http port"]
            assert len(told) == 1
            assert place.door.metrics.malformed == 5

    asyncio.run(scenario())


def test_pages_of_others_may_not_ask_where_there_are_no_users() -> None:
    assert asked(query("echo", b"[1]", "Origin: http://evil.example")).status == 403
    assert asked(query("echo", b"[1]", "Origin: http://localhost")).status == 200


def test_the_query_table_can_be_read_and_queries_cancelled() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            waiting = await place.dial()
            waiting.send(query("hang", b'["select 1"]'))
            await until(lambda: len(place.asking.asked) == 1, "the query arrives")
            path = "/v1/default/queries?queue=hang"
            (row,) = json.loads((await ask(place, get(path))).body)["queries"]
            # Nobody can say what its handler hides.
            assert (row["query"], row["status"]) == ("[hidden]", "waiting")
            place.gateway.client = cast("AsyncClient", FakeNode([PLAIN]))
            (row,) = json.loads((await ask(place, get(path))).body)["queries"]
            assert (row["query"], row["status"]) == ("select 1", "waiting")
            elsewhere = await ask(place, get("/v1/other/queries"))
            assert json.loads(elsewhere.body) == {"queries": []}
            path = f"/v1/default/queries/{row['sequence']}"
            done = await ask(place, get(path, method="DELETE"))
            assert json.loads(done.body) == {"sequence": row["sequence"], "state": "cancelling"}
            assert (await waiting.answer()).status == 409
            again = await ask(place, get(path, method="DELETE"))
            assert json.loads(again.body)["state"] == "over"
            waiting.close()

    asyncio.run(scenario())


def test_metrics_count_what_happened() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            await ask(place, query("echo", b"[1]"))
            await ask(place, query("nobody", b"[1]"))
            page = await ask(place, get("/metrics"))
            assert page.headers["content-type"].startswith("text/plain")
            lines = page.body.decode().splitlines()
            assert 'maitred_http_requests_total{route="query",status="200"} 1' in lines
            assert 'maitred_http_requests_total{route="query",status="503"} 1' in lines
            assert 'maitred_http_request_seconds_count{route="query"} 2' in lines
            assert 'maitred_queries_total{status="done"} 1' in lines
            assert (await ask(place, get("/ready"))).status == 503

    asyncio.run(scenario())


def test_errors_are_counted_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):  # as a node of a later release, or a hostile one, may send them
        later = RemoteError("New.", code=f"code-{number}")
        monkeypatch.setitem(REFUSED, f"later-{number}", later)

    async def scenario() -> None:
        async with open_door(header_bytes=1_000) as place:
            await ask(place, query("echo", b"[1]"))
            for _ in range(2):
                await ask(place, query("nobody", b"[1]"))  # refused before it begins
            await ask(place, query("late", b"[1]"))  # refused after it began
            await ask(place, get("/nowhere"))
            await ask(place, get("/", f"X-Long: {'x' * 1_000}"))  # refused before it is complete
            for number in range(3):
                await ask(place, query(f"later-{number}", b"[1]"))
            stream = await place.dial()
            stream.send(query("broken", b"[2]"))
            await stream.rest()
            stream.close()
            leaving = await place.dial()
            leaving.send(query("hang", b"[1]"))
            await until(lambda: place.asking.asked[-1].ask.queue == "hang", "it is asked")
            leaving.close()
            await until(lambda: bool(place.asking.cancelled), "the caller has left")
            page = parsed((await ask(place, get("/metrics"))).body.decode())
            counted = page.values("maitred_gateway_errors_total")
            assert {dict(labels)["code"]: count for labels, count in counted.items()} == {
                "deadline-exceeded": 1,
                "headers-too-large": 1,
                "no-worker": 2,
                "other": 3,
                "unknown-route": 1,
                "worker-lost": 1,
            }
            assert {len(labels) for labels in counted} == {1}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:4780", 200),
        ("desk.localhost:1", 200),
        ("127.0.0.1:4780", 200),
        ("[::1]:4780", 200),
        ("10.1.2.3", 200),
        ("evil.example", 403),
        ("evil.example:4780", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("[::1].evil", 200),  # no browser takes that for a name
        ("", 403),
    ],
)
def test_a_name_that_somebody_made_point_here_is_refused(host: str, status: int) -> None:
    request = get("/health").replace(b"Host: localhost", f"Host: {host}".encode())
    answer = asked(request)
    assert answer.status == status
    if status == 403:
        assert error(answer)["code"] == "permission-denied"


def test_every_request_of_a_connection_has_to_know_our_name() -> None:
    async def scenario() -> list[int]:
        async with open_door() as place:
            caller = await place.dial()
            found = []
            for host in (b"localhost", b"evil.example", b"localhost", b"evil.example"):
                caller.send(get("/health").replace(b"localhost", host))
                found.append((await caller.answer()).status)
            caller.close()
            return found

    assert asyncio.run(scenario()) == [200, 403, 200, 403]
