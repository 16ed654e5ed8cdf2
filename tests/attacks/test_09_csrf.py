"""A page of another origin cannot use what a browser adds to its requests by itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from maitred.errors import PermissionDenied
from maitred.gateway.http.admission import check_browser
from maitred.settings import GatewaySettings, Node, User
from tests.gateway.fakes import Answer, get, open_door, post, query
from tests.gateway.test_users import basic
from tests.security.cheap import cheaply

ALICE = basic("alice", "open sesame")
BEARER = "Authorization: Bearer alice:open sesame"
TASKS = "/v1/default/queues/echo/tasks"


def node(**gateway: Any) -> Node:  # noqa: ANN401
    users = {"alice": User(secret=cheaply("open sesame"), permissions={"*": ["admin"]})}
    return Node(gateway=GatewaySettings(port=0, **gateway), users=users)


def asked(request: bytes, **gateway: Any) -> tuple[Answer, int]:  # noqa: ANN401
    """Return the answer, and how many queries were begun."""

    async def scenario() -> tuple[Answer, int]:
        async with open_door(node(**gateway)) as place:
            caller = await place.dial()
            caller.send(request)
            answer = await caller.answer()
            caller.close()
            return answer, len(place.asking.asked)

    return asyncio.run(scenario())


FOREIGN = [
    ("Origin: https://evil.example",),
    ("Origin: null",),
    ("Origin: http://localhost:1",),  # another port is another origin
    ("Origin: http://localhost.evil.example",),
    ("Sec-Fetch-Site: cross-site",),
    ("Sec-Fetch-Site: same-site",),
    ("Sec-Fetch-Site: nonsense",),
    ("Sec-Fetch-Site: cross-site", "Origin: http://localhost"),
    ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"),  # a form
]


@pytest.mark.parametrize("credentials", [ALICE, BEARER])
@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_origin_asks_nothing(headers: tuple[str, ...], credentials: str) -> None:
    answer, begun = asked(query("echo", b"[1]", credentials, *headers))
    assert (answer.status, begun) == (403, 0)
    assert json.loads(answer.body)["error"]["code"] == "permission-denied"
    assert asked(post(TASKS, b"[1]", credentials, *headers))[0].status == 403
    path = "/v1/default/queries/1"
    assert asked(get(path, credentials, *headers, method="DELETE"))[0].status == 403


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Origin: http://localhost",),
        ("Origin: HTTPS://LOCALHOST",),  # a proxy that ends TLS
        ("Sec-Fetch-Site: same-origin",),
        ("Sec-Fetch-Site: none",),
        ("Sec-Fetch-Site: same-origin", "Origin: https://desk.example"),  # one that changes Host
    ],
)
def test_programs_and_pages_of_the_gateways_own_origin_ask(headers: tuple[str, ...]) -> None:
    answer, begun = asked(query("echo", b"[1]", ALICE, *headers))
    assert (answer.status, begun) == (200, 1)


def test_an_origin_can_be_allowed() -> None:
    request = query("echo", b"[1]", ALICE, "Origin: https://desk.example")
    assert asked(request)[0].status == 403
    assert asked(request, origins=["https://Desk.example"])[0].status == 200
    assert asked(request, origins=["https://desk.example:8443"])[0].status == 403


def test_a_person_may_follow_a_link_but_no_page_may_load_it() -> None:
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    path = "/v1/default/queries"
    assert asked(get(path, ALICE, *link))[0].status == 200
    for headers in (("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"), link[:1]):
        assert asked(get(path, ALICE, *headers))[0].status == 403


def test_an_unencrypted_page_is_not_of_the_origin_of_an_encrypted_gateway() -> None:
    headers = {b"host": b"gate.example", b"origin": b"http://gate.example"}
    check_browser(b"POST", headers, frozenset(), tls=False)
    with pytest.raises(PermissionDenied):
        check_browser(b"POST", headers, frozenset(), tls=True)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@pytest.mark.parametrize("path", ["/v1/default/queues/echo/query", TASKS])
def test_json_has_to_be_declared(content_type: str | None, path: str) -> None:
    """The types that a form, or a page that asks nobody first, can send."""
    request = post(path, b"[1]", ALICE, f"Content-Type: {content_type}")
    if content_type is None:
        request = request.replace(b"Content-Type: None\r\n", b"")
    answer, begun = asked(request)
    assert (answer.status, begun) == (415, 0)
    found = json.loads(answer.body)["error"]
    assert found["code"] == "unsupported-media-type"
    assert "--json" in found["remedy"]


def test_a_request_without_a_body_declares_nothing() -> None:
    assert asked(query("all", b"", ALICE))[0].body == b"[]"


def test_a_head_that_was_refused_is_refused_again() -> None:
    """A head that is the last one's byte for byte is not read again."""

    async def scenario() -> None:
        async with open_door(node()) as place:
            caller = await place.dial()
            for origin, status in (
                ("http://localhost", 200),
                ("http://evilhost", 403),
                ("http://evilhost", 403),
                ("http://localhost", 200),
                ("http://localhost", 200),
                ("http://evilhost", 403),
            ):
                caller.send(query("echo", b"[1]", ALICE, f"Origin: {origin}"))
                assert (await caller.answer()).status == status
            caller.close()

    asyncio.run(scenario())
