"""JWTs at both listeners of a running node, with keys from a file and from an issuer's address."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from maitred.config import check
from maitred.errors import (
    InvalidSetting,
    InvalidToken,
    PermissionDenied,
    TokenExpired,
    Unauthenticated,
)
from maitred.security import jwt_keys
from maitred.settings import Node
from tests.node.in_process import in_a_loop, until
from tests.security.bearing import place
from tests.security.issuer import jwks, public_jwk, settings, signed
from tests.security.test_tokens_real import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEYS_NOT_READ = "JWT keys not read again; the old state stays"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(public_jwk("ec"), public_jwk("ed")))
    return file


def changed(file: Path, body: bytes) -> None:
    file.write_bytes(body)


@in_a_loop
async def test_a_jwt_opens_both_listeners(tmp_path: Path, keys: Path) -> None:
    async with place(tmp_path, shards=2, users={}, jwt=settings(keys)) as made:
        token = signed(made.clock.now)
        client = await made.native(token)
        await made.lets_in(client)
        with pytest.raises(PermissionDenied):
            await made.lets_in(client, "m")
        await made.node.ready(1, "token", signed(made.clock.now, "ed"))
        answer = await made.http(f"Authorization: Bearer {token}")
        assert (answer.status, answer.body) == (200, b"1")
        assert made.asking.asked[0].ask.user == "zoe"
        assert (await made.http(f"Authorization: Bearer {token}", namespace="m")).status == 403
        assert (await made.http()).status == 401
        with pytest.raises(Unauthenticated):
            await made.client()


@in_a_loop
async def test_a_jwt_ends_with_its_time_and_with_its_key(tmp_path: Path, keys: Path) -> None:
    async with place(tmp_path, jwt=settings(keys)) as made:
        token = signed(made.clock.now)
        client, other = await made.native(token), await made.native(signed(made.clock.now, "ed"))
        await made.lets_in(client)
        changed(keys, jwks(public_jwk("ed")))
        problem = await refused(client, made)
        assert isinstance(problem, InvalidToken)
        await made.lets_in(other)
        made.clock.now += 630
        assert isinstance(await refused(other, made), TokenExpired)
        answer = await made.http(f"Authorization: Bearer {signed(made.clock.now - 700, 'ed')}")
        assert answer.status == 401
        assert b'"token-expired"' in answer.body
        assert answer.headers["www-authenticate"].startswith("Bearer ")


@in_a_loop
async def test_a_broken_file_of_keys_changes_nothing_and_is_told(
    tmp_path: Path, keys: Path
) -> None:
    async with place(tmp_path, gateway=False, jwt=settings(keys)) as made:
        client = await made.native(signed(made.clock.now))
        changed(keys, b"{}")
        await until(lambda: KEYS_NOT_READ in made.node.log.events("error"))
        await made.lets_in(client)
        await made.native(signed(made.clock.now))


class Issuer:
    """Answers HTTP with what a test wants."""

    def __init__(self) -> None:
        self.answer = self.ok(jwks(public_jwk("ec")))
        self.asked = 0
        self.port = 0
        self.holding = False

    @staticmethod
    def ok(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}Connection: close\r\n"
        return head.encode() + b"\r\n" + body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        writer.write(self.answer)
        if self.holding:
            await reader.read()
        writer.close()


@asynccontextmanager
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@in_a_loop
async def test_keys_from_an_address_and_one_that_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        issuer() as there,
        place(tmp_path, gateway=False, users={}, jwt=settings(jwks_url=there.url)) as made,
    ):
        await made.lets_in(await made.native(signed(made.clock.now)))
        there.answer = there.ok(jwks(public_jwk("ec"), public_jwk("ed", 3)))
        asked = there.asked
        for _ in range(3):  # one more fetch is not allowed yet
            with pytest.raises(InvalidToken):
                await made.native(signed(made.clock.now, "ed", 3))
        assert there.asked == asked
        monkeypatch.setattr(jwt_keys, "PAUSE_SECONDS", 0.0)
        await made.lets_in(await made.native(signed(made.clock.now, "ed", 3)))


@in_a_loop
async def test_an_issuer_that_does_not_answer_keeps_nobody_out_who_was_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        issuer() as there,
        place(tmp_path, gateway=False, users={}, jwt=settings(jwks_url=there.url)) as made,
    ):
        token = signed(made.clock.now)
        client = await made.native(token)
        there.answer = there.ok(b"", "500 Oops")
        monkeypatch.setattr(jwt_keys, "PAUSE_SECONDS", 0.0)
        with pytest.raises(InvalidToken):
            await made.native(signed(made.clock.now, "ed"))
        await until(lambda: KEYS_NOT_READ in made.node.log.events("error"))
        await made.lets_in(client)
        await made.lets_in(await made.native(token))
        assert made.node.shard.reloading.outcomes["JWT keys", "failed"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Issuer.ok(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "302"),
        (Issuer.ok(b"", "404 Not Found"), "404"),
        (Issuer.ok(b" " * (jwt_keys.JWKS_BYTES_MAX + 1)), "more than"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be fetched"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "is not a JWKS"),
    ],
)
@in_a_loop
async def test_answers_that_are_refused(answer: bytes, said: str) -> None:
    async with issuer() as there:
        there.answer = answer
        source = jwt_keys.KeySource(settings(jwks_url=there.url))
        with pytest.raises(InvalidSetting, match=said):
            await asyncio.to_thread(source.reload)


@in_a_loop
async def test_an_issuer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt_keys, "FETCH_SECONDS", 0.05)
    async with issuer() as there:
        there.answer, there.holding = b"", True
        source = jwt_keys.KeySource(settings(jwks_url=there.url))
        with pytest.raises(InvalidSetting, match="cannot be fetched: timed out"):
            await asyncio.to_thread(source.reload)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "in one place"),
        ({"jwks_url": "https://a/k", "jwks_file": "k"}, "in one place"),
        ({"jwks_url": "http://a/k"}, "not an https address"),
        ({"jwks_url": "https://a/k", "audience": []}, "is empty"),
        ({"jwks_file": "/nowhere/keys"}, "cannot be read"),
        ({"jwks_url": "https://a/k", "permissions": {"x": {"a:b": ["query"]}}}, "colon"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        check(Node(jwt=settings(**changes)))


def test_a_node_with_jwts_alone_may_be_public(keys: Path) -> None:
    check(Node(host="0.0.0.0", jwt=settings(keys)))  # noqa: S104 - that is the point
