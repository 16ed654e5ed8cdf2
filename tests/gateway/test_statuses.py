"""Every error has a status, and the document promises each of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack

from maitred.errors import (
    InvalidArgument,
    MaitredError,
    RemoteError,
    Unauthenticated,
    UnsupportedMediaType,
)
from maitred.gateway.http.formats import accepted, arguments, is_msgpack
from maitred.gateway.http.openapi import document
from maitred.gateway.http.routes import ROUTES, Routes
from maitred.gateway.http.statuses import REASONS, STATUSES, behind_us, status_of, told
from maitred.protocol.refusals import CLASSES
from tests.gateway.fakes import get, open_door


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.code)
def test_every_error_has_a_status(kind: type[MaitredError]) -> None:
    problem = kind("It went wrong.", remedy="Do better.")
    status = status_of(problem)
    assert status in REASONS
    assert 400 <= status <= 599
    found = told(problem, tracebacks=False)["error"]
    assert (found["code"], found["message"], found["remedy"], found["outcome"]) == (
        kind.code,
        "It went wrong.",
        "Do better.",
        kind.outcome,
    )


def test_an_error_of_a_newer_node_is_not_ours() -> None:
    assert status_of(RemoteError("Odd.", code="odd")) == 502


def test_what_the_node_says_to_us_is_not_said_to_the_caller() -> None:
    assert status_of(behind_us(Unauthenticated("Who are you?"))) == 503


def test_the_document_has_every_route_and_every_status() -> None:
    found = document(with_users=True)
    assert found["openapi"].startswith("3.1")
    for route in ROUTES:
        operation = found["paths"][route.path][route.method.lower()]
        assert operation["operationId"] == route.handler
        named = {one["name"] for one in operation["parameters"]}
        assert named >= set(re.findall(r"{(\w+)}", route.path))
        assert bool(operation["security"]) is not route.is_open
    responses = found["paths"]["/v1/{namespace}/queues/{queue}/query"]["post"]["responses"]
    assert {str(status) for status in STATUSES.values()} <= set(responses)
    references = set(re.findall(r'"#/([^"]+)"', json.dumps(found)))
    for reference in references:
        at: Any = found
        for part in reference.split("/"):
            at = at[part]


def test_the_document_is_served() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            caller = await place.dial()
            caller.send(get("/openapi.json"))
            assert json.loads((await caller.answer()).body) == json.loads(
                json.dumps(document(with_users=False))
            )
            caller.close()

    asyncio.run(scenario())


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_path_leads_somewhere_or_is_refused(method: bytes, path: bytes) -> None:
    routes = Routes()
    try:
        found = routes.find(method, b"/v1/" + path)
    except InvalidArgument:
        return
    assert routes.find(method, b"/v1/" + path) is found


@example(body=b"\xa1\x80", packed=True)
@example(body=b"\x91\xa1\x80", packed=True)
@example(body=b"\x81\xa1a\x91\xa1\x80", packed=True)
@example(body=b"\x91\x81\x80\x01", packed=True)
@given(st.binary(max_size=200), st.booleans())
def test_any_body_is_arguments_or_is_refused(body: bytes, packed: bool) -> None:
    try:
        made = arguments(body, packed=packed)
    except InvalidArgument:
        return
    assert isinstance(msgpack.decode(made, strict=False), list | dict)


@given(st.binary(max_size=60))
def test_any_media_type_is_known_or_is_refused(text: bytes) -> None:
    with contextlib.suppress(UnsupportedMediaType):
        is_msgpack(text, b"[1]")
    with contextlib.suppress(InvalidArgument):
        accepted(text, packed=False)
