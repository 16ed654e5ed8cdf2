"""Small lies between a caller and the HTTP API: encodings, and what the document promises."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maitred.errors import InvalidArguments
from maitred.gateway.http.formats import arguments
from maitred.gateway.http.openapi import SCHEMAS, document
from maitred.settings import GatewaySettings, Node, User
from tests.gateway.fakes import Answer, get, open_door, query
from tests.gateway.test_users import basic
from tests.security.cheap import cheaply


def asked(request: bytes, settings: Node | None = None) -> Answer:
    async def scenario() -> Answer:
        async with open_door(settings) as place:
            caller = await place.dial()
            caller.send(request)
            answer = await caller.answer()
            caller.close()
            return answer

    return asyncio.run(scenario())


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip", "x", ""])
def test_an_encoded_body_is_refused(encoding: str) -> None:
    answer = asked(query("echo", gzip.compress(b"[1]"), f"Content-Encoding: {encoding}"))
    assert answer.status == 415
    found = json.loads(answer.body)["error"]
    assert found["code"] == "unsupported-media-type"
    assert "Content-Encoding" in found["remedy"]


def test_a_body_as_it_is_may_say_so() -> None:
    assert asked(query("echo", b"[1]", "Content-Encoding: Identity")).body == b"1"


def test_the_connection_goes_on_after_it() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            for _ in range(2):
                caller.send(query("echo", b"xxx", "Content-Encoding: gzip"))
                assert (await caller.answer()).status == 415
            caller.send(query("echo", b"[1]"))
            assert (await caller.answer()).body == b"1"
            caller.close()

    asyncio.run(scenario())


def valid(value: Any) -> bool:  # noqa: ANN401
    """Does the document allow it? A small reading of its schema."""
    _, text, _, objects = SCHEMAS["Value"]["anyOf"]
    if isinstance(value, str):
        return bool(re.search(text["pattern"], value))
    if isinstance(value, list):
        return all(map(valid, value))
    if isinstance(value, dict):
        names = objects["propertyNames"]["pattern"]
        return all(re.search(names, name) and valid(one) for name, one in value.items())
    return True


TEXT = st.text(st.characters(), max_size=5) | st.sampled_from(["\ud800", "\udfffx", "", "\0", "😀"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


def is_taken(value: Any) -> bool:  # noqa: ANN401
    try:
        arguments(json.dumps(value).encode(), packed=False)
    except InvalidArguments:
        return False
    return True


@example({"\ud800": 1})
@example({"😀": 1})
@given(VALUES)
def test_the_document_allows_what_is_taken_and_nothing_else(value: Any) -> None:  # noqa: ANN401
    """Names that are half of a surrogate pair were allowed and refused."""
    value = json.loads(json.dumps(value))  # two halves that happen to meet are a pair
    assert is_taken(value) is valid(value)


def test_what_no_schema_can_say_the_document_says_in_words() -> None:
    """1e30 is a whole number to JSON Schema, and a floating one to everybody else."""
    assert not is_taken(2**64)
    assert is_taken(1e30)
    assert "64 bits" in SCHEMAS["Value"]["description"]


def test_both_routes_with_a_body_promise_the_same() -> None:
    paths = document(with_users=False)["paths"]
    for name in ("query", "tasks"):
        content = paths[f"/v1/{{namespace}}/queues/{{queue}}/{name}"]["post"]["requestBody"]
        schemas = [one["schema"]["$ref"] for one in content["content"].values()]
        assert schemas == ["#/components/schemas/Arguments"] * 2
    assert SCHEMAS["Arguments"]["$ref"] == "#/components/schemas/Value"


# Pages that can be closed


def users(**gateway: Any) -> Node:  # noqa: ANN401
    def user(**permissions: Any) -> User:  # noqa: ANN401
        return User(secret=cheaply("s"), permissions=permissions)

    return Node(
        gateway=GatewaySettings(port=0, **gateway),
        users={
            "root": user(**{"*": ["admin"]}),
            "prometheus": user(**{"*": ["observe"]}),
            "tenant": user(mine=["admin"]),
            "asker": user(**{"*": ["query", "produce", "work"]}),
        },
    )


@pytest.mark.parametrize(
    ("path", "closing"), [("/metrics", "open_metrics"), ("/openapi.json", "open_document")]
)
def test_a_page_can_need_a_permission(path: str, closing: str) -> None:
    assert asked(get(path), users()).status == 200
    closed = users(**{closing: False})
    assert asked(get(path), closed).status == 401
    for user, status in (("prometheus", 200), ("root", 200), ("tenant", 403), ("asker", 403)):
        answer = asked(get(path, basic(user, "s")), closed)
        assert answer.status == status, user
    other = "/openapi.json" if path == "/metrics" else "/metrics"
    assert asked(get(other), closed).status == 200


def test_health_stays_open_and_says_little() -> None:
    closed = users(open_metrics=False, open_document=False)
    assert asked(get("/health"), closed).body == b'{"status":"alive"}'
    assert asked(get("/ready"), closed).status == 503


def test_the_document_says_which_pages_are_closed() -> None:
    closed = users(open_metrics=False, open_document=False)
    found = json.loads(asked(get("/openapi.json", basic("root", "s")), closed).body)
    for path, is_open in (("/metrics", False), ("/openapi.json", False), ("/health", True)):
        operation = found["paths"][path]["get"]
        assert (operation["security"] == []) is is_open
        assert ("401" in operation["responses"]) is not is_open
