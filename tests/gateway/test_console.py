"""The console's files, its sessions and its streams, request by request."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import (
    MaitredError,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnknownQueue,
)
from maitred.gateway.admin.answers import ListedQueues, ToldError, UnreachablePart
from maitred.gateway.http.console import POLICY, read_files
from maitred.gateway.http.live import AWAY_REST_SECONDS, REST_MOST_SECONDS, LiveRoutes, pause_after
from maitred.gateway.http.request import HttpRequest
from maitred.gateway.http.sessions import SESSIONS_PER_USER_MAX, ConsoleSession, Sessions, cookie_in
from maitred.security.directory import Identity
from maitred.security.permissions import EVERYTHING
from maitred.settings import GatewaySettings, Node, User
from tests.gateway.fakes import Answer, Caller, get, open_door, post, until
from tests.gateway.test_users import basic
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = "open sesame"
CANCEL = "/v1/default/queries/1"
LISTED = "/v1/default/queries"


def node(**gateway: Any) -> Node:  # noqa: ANN401
    users = {
        "alice": User(secret=cheaply(WORDS), permissions={"*": ["admin"]}),
        "rita": User(secret=cheaply(WORDS), permissions={"desk": ["read"]}),
    }
    return Node(gateway=GatewaySettings(port=0, **gateway), users=users)


async def said(caller: Caller, request: bytes) -> Answer:
    caller.send(request)
    return await caller.answer()


def login(user: str = "alice", secret: str = WORDS, *headers: str) -> bytes:
    return post("/v1/session", json.dumps({"user": user, "secret": secret}).encode(), *headers)


async def cookie_and_mark(caller: Caller, user: str = "alice") -> tuple[str, str]:
    answer = await said(caller, login(user))
    assert answer.status == 200, answer.body
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return f"Cookie: {cookie}", f"Maitred-Csrf: {json.loads(answer.body)['csrf']}"


def test_the_page_is_open_and_forbids_everything_but_its_own_files() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            leading = await said(caller, get("/console"))
            assert (leading.status, leading.headers["location"]) == (307, "console/")
            page = await said(caller, get("/console/"))
            assert page.headers["content-security-policy"] == POLICY
            for directive in (
                "default-src 'none'",
                "frame-ancestors 'none'",
                "trusted-types 'none'",
            ):
                assert directive in POLICY
            assert "unsafe" not in POLICY
            assert page.headers["x-content-type-options"] == "nosniff"
            assert b"<script type=" in page.body
            assert b"http:" not in page.body  # no outside host
            assert b"https:" not in page.body
            tag = f"If-None-Match: {page.headers['etag']}"
            caller.send(get("/console/", tag))
            again = await caller.answer(has_body=False)
            assert (again.status, again.headers["content-length"]) == (304, str(len(page.body)))
            script = await said(caller, get("/console/app.js"))
            assert script.headers["content-type"] == "text/javascript; charset=utf-8"
            assert (await said(caller, get("/console/secrets.toml"))).status == 404
            caller.close()

    asyncio.run(scenario())


def test_no_file_has_inline_code_or_parses_text_as_html() -> None:
    for name, file in read_files().items():
        text = file.body.decode()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert forbidden not in text, (name, forbidden)
        if name.endswith(".html"):
            assert "<style" not in text
            assert " on" not in text.replace(" on the", "")
        assert "//cdn" not in text


def test_a_gateway_without_the_console_has_no_sessions_either() -> None:
    async def scenario() -> None:
        async with open_door(node(console=False)) as place:
            caller = await place.dial()
            for request in (
                get("/console"),
                get("/console/"),
                login(),
                get("/v1/live?view=/v1/me"),
            ):
                assert (await said(caller, request)).status == 404
            caller.close()

    asyncio.run(scenario())


def test_a_session_stands_for_its_user_until_the_logout() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            answer = await said(caller, login())
            cookie = answer.headers["set-cookie"]
            for part in ("HttpOnly", "SameSite=Strict", "Path=/"):
                assert part in cookie
            with_cookie = f"Cookie: other=1; {cookie.partition(';')[0]}"
            mark = f"Maitred-Csrf: {json.loads(answer.body)['csrf']}"
            assert (await said(caller, get(LISTED))).status == 401
            assert (await said(caller, get(LISTED, with_cookie))).status == 200
            closed = await said(caller, get("/v1/session", with_cookie, mark, method="DELETE"))
            assert closed.status == 200
            over = await said(caller, get(LISTED, with_cookie, mark))
            assert over.status == 401
            # A browser that got this header would open a dialog of its own.
            assert "www-authenticate" not in over.headers
            caller.close()

    asyncio.run(scenario())


def test_a_wrong_secret_opens_no_session() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            for request in (login("alice", "wrong"), login("nobody"), login("", "")):
                answer = await said(caller, request)
                assert answer.status in {400, 401}
                assert "set-cookie" not in answer.headers
            assert len(place.door.logins.sessions) == 0
            caller.close()

    asyncio.run(scenario())


def test_the_body_of_a_login_is_bounded_before_it_is_read() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            caller.send(
                b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{"
            )
            assert (await caller.head()).status == 400
            caller.close()

    asyncio.run(scenario())


def test_a_request_with_a_cookie_that_changes_something_needs_the_mark() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            cookie, mark = await cookie_and_mark(caller)
            _, other_mark = await cookie_and_mark(caller)
            for headers in ((cookie,), (cookie, "Maitred-Csrf: "), (cookie, other_mark)):
                answer = await said(caller, get(CANCEL, *headers, method="DELETE"))
                assert answer.status == 403, headers
            assert (await said(caller, get(CANCEL, cookie, mark, method="DELETE"))).status == 404
            # A program with credentials of its own needs none.
            own = basic("alice", WORDS)
            assert (await said(caller, get(CANCEL, own, method="DELETE"))).status == 404
            foreign = get(CANCEL, cookie, mark, "Origin: https://evil.example", method="DELETE")
            assert (await said(caller, foreign)).status == 403
            caller.close()

    asyncio.run(scenario())


def test_a_session_has_the_permissions_of_its_user() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            cookie, mark = await cookie_and_mark(caller, "rita")
            pause = post("/v1/desk/queues/ticks/pause", b"{}", cookie, mark)
            assert (await said(caller, pause)).status == 403
            assert (await said(caller, get("/v1/shop/queues/mail", cookie))).status == 403
            caller.close()

    asyncio.run(scenario())


def test_a_removed_user_has_no_session() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            cookie, _ = await cookie_and_mark(caller)
            await place.gateway.guard.reloading.reload({})
            assert (await said(caller, get(LISTED, cookie))).status == 401
            caller.close()

    asyncio.run(scenario())


async def next_event(caller: Caller) -> tuple[str, Any]:
    """Return the next event of a stream; comments are left out."""
    async with asyncio.timeout(20):
        event = ""
        while True:
            line = (await caller.reader.readline()).decode().rstrip("\r\n")
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return event, json.loads(line.removeprefix("data: "))


def live(*views: str) -> str:
    return "/v1/live?interval=0.5&view=" + "%0A".join(one.replace("&", "%26") for one in views)


def test_a_stream_sends_a_view_again_when_it_has_changed() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller, other = await place.dial(), await place.dial()
            cookie, mark = await cookie_and_mark(other)
            caller.send(get(live(LISTED, LISTED + "?status=failed&most=5"), cookie))
            head = await caller.head()
            assert head.headers["content-type"] == "text/event-stream"
            first = [await next_event(caller), await next_event(caller)]
            assert first == [("0", {"queries": []}), ("1", {"queries": []})]
            own = basic("alice", WORDS)
            await said(other, post("/v1/default/queues/echo/query", b"[1]", own))
            number, answer = await next_event(caller)
            assert (number, len(answer["queries"])) == ("0", 1)
            # The session ends: the stream says so.
            await said(other, get("/v1/session", cookie, mark, method="DELETE"))
            number, answer = await next_event(caller)
            assert (number, answer["status"]) == ("0-error", 401)
            caller.close()
            other.close()
            await until(lambda: place.door._live.open_streams == 0, "the stream ends")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "views",
    [
        (),
        ("/v1/me",) * 5,
        ("/metrics",),
        ("/v1/live?view=x",),
        ("/v1/default/queues/echo/tasks/0/1",),
    ],
)
def test_a_stream_follows_views_only(views: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            answer = await said(caller, get(live(*views), basic("alice", WORDS)))
            assert answer.status == 400
            caller.close()

    asyncio.run(scenario())


def test_a_stream_is_refused_what_its_user_may_not_see() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            answer = await said(caller, get(live("/v1/nodes"), basic("rita", WORDS)))
            assert answer.status == 403
            caller.close()

    asyncio.run(scenario())


def test_a_gateway_that_stops_ends_its_streams() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            caller.send(get(live(LISTED), basic("alice", WORDS)))
            await caller.head()
            await next_event(caller)
            assert await place.door.drain(20.0)
            assert b"0\r\n\r\n" in await caller.rest()
            caller.close()

    asyncio.run(scenario())


# The table of sessions


def identity(name: str = "alice") -> Identity:
    return Identity(name, EVERYTHING, "")


def counted() -> Callable[[int], bytes]:
    numbers = iter(range(1_000_000))
    return lambda size: next(numbers).to_bytes(size, "big")


def begin(sessions: Sessions, now: float, name: str = "alice") -> tuple[str, ConsoleSession]:
    return sessions.begin(identity(name), "", now)


def test_a_session_that_is_not_used_ends() -> None:
    sessions = Sessions(60.0, counted())
    cookie, session = begin(sessions, 0.0)
    assert sessions.find(cookie, 60.0) is session
    assert sessions.find(cookie, 120.0) is session  # it was used in between
    assert sessions.find(cookie, 180.1) is None
    assert len(sessions) == 0
    assert sessions.find("something else", 0.0) is None


def test_the_table_of_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(60.0, counted())
    first, _ = begin(sessions, 0.0)
    second, _ = begin(sessions, 0.0)
    for _ in range(SESSIONS_PER_USER_MAX - 2):
        begin(sessions, 0.0)
    sessions.find(first, 1.0)
    begin(sessions, 2.0)  # ends the one that was not used for the longest
    assert sessions.find(second, 2.0) is None
    assert sessions.find(first, 2.0) is not None
    monkeypatch.setattr("maitred.gateway.http.sessions.SESSIONS_MAX", len(sessions))
    with pytest.raises(Overloaded):
        begin(sessions, 3.0, "bob")
    begin(sessions, 100.0, "bob")  # the others are over by then


def test_the_mark_of_a_session_is_its_own() -> None:
    sessions = Sessions(60.0, counted())
    _, session = begin(sessions, 0.0)
    session.check({b"maitred-csrf": session.csrf.encode()})
    for headers in ({}, {b"maitred-csrf": b""}, {b"maitred-csrf": b"\xff"}):
        with pytest.raises(PermissionDenied):
            session.check(headers)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, ""),
        (b"", ""),
        (b"maitred-1=abc", "abc"),
        (b"a=b; maitred-1=abc; c=d", "abc"),
        (b"maitred-12=abc", ""),
        (b"maitred-1", ""),
    ],
)
def test_a_cookie_is_found_among_others(header: bytes | None, found: str) -> None:
    assert cookie_in(header, b"maitred-1") == found


@pytest.mark.parametrize(
    ("took", "interval", "is_whole", "pause"),
    [
        (0.001, 2.0, True, 2.0),
        (0.1, 2.0, True, 10.0),
        (3.0, 2.0, True, REST_MOST_SECONDS),
        # The gateway waited for a node that is away: the page shows soon that the node is back.
        (3.0, 2.0, False, AWAY_REST_SECONDS),
        (3.0, 60.0, False, 60.0),
    ],
)
def test_the_pause_between_two_looks(
    took: float, interval: float, *, is_whole: bool, pause: float
) -> None:
    assert pause_after(took, interval, is_whole=is_whole) == pause


ERROR = ToldError("unavailable", "It is away.", None, "nothing")


@pytest.mark.parametrize(
    ("answer", "is_whole"),
    [
        (ListedQueues([], {}, None, []), True),
        (ListedQueues([], {}, None, [UnreachablePart(error=ERROR, shard=1)]), False),
        (Unavailable("No node."), False),
        (UnknownQueue("No such queue."), True),
    ],
)
def test_a_look_that_a_shard_did_not_answer_is_not_whole(
    answer: ListedQueues | MaitredError, *, is_whole: bool
) -> None:
    """It took long because the gateway waited, which is no reason for a long pause."""

    async def show(*_: object) -> Any:  # noqa: ANN401
        if isinstance(answer, MaitredError):
            raise answer
        return answer

    async def identify(*_: object) -> None: ...

    async def main() -> None:
        route = SimpleNamespace(handler="list_queues", path="/v1/queues")
        listener: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            identify=identify,
            find=lambda _: SimpleNamespace(route=route, values=()),
            check_permission=lambda *_: None,
            typed=lambda _, problem: problem,
        )
        views: Any = SimpleNamespace(show=show, by_handler={"list_queues": show})
        routes = LiveRoutes(listener, views)
        request = HttpRequest(b"GET", b"/v1/live", {}, b"", 0.0)
        connection: Any = SimpleNamespace(source="127.0.0.1")
        assert (await routes._event(connection, request, request, 0))[1] == is_whole

    asyncio.run(main())
