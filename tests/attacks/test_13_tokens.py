"""Tokens that a stranger makes up, changes, or uses after they ended: both listeners refuse all."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from maitred.errors import InvalidToken, MaitredError, PermissionDenied
from maitred.protocol.access import CreateToken
from tests.gateway.test_users import basic
from tests.node.in_process import in_a_loop
from tests.security.bearing import Place, place
from tests.security.issuer import ISSUER, claims, jwks, pem, public_jwk, settings, signed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def refused_everywhere(made: Place, token: str) -> None:
    with pytest.raises(InvalidToken):
        await made.native(token)
    for header in (f"Authorization: Bearer {token}", basic("token", token)):
        answer = await made.http(header)
        assert answer.status == 401, answer.body
        assert json.loads(answer.body)["error"]["code"] in {"invalid-token", "token-expired"}
    assert not made.asking.asked
    assert token not in str(made.node.log.lines)


def _encoded(part: object) -> str:
    return urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def _unsigned(now: float) -> str:
    return f"{_encoded({'alg': 'none', 'kid': 'rsa-0'})}.{_encoded(claims(now))}."


def _signed_with_the_public_key(now: float) -> str:
    begin = f"{_encoded({'alg': 'HS256', 'kid': 'rsa-0'})}.{_encoded(claims(now))}"
    mac = hmac.new(pem("rsa"), begin.encode(), sha256).digest()
    return f"{begin}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _own_key_brought_along(now: float) -> str:
    own = {"jwk": public_jwk("ec", 7, kid="ec-0"), "jku": f"{ISSUER}/keys", "kid": "ec-0"}
    return signed(now, "ec", 7, headers=own)


ATTACKS: dict[str, Callable[[float], str]] = {
    "unsigned": _unsigned,
    "signed with the public key": _signed_with_the_public_key,
    "own key brought along": _own_key_brought_along,
    "key that nobody knows": lambda now: signed(now, "ec", 7),
    "other algorithm than the key's": lambda now: signed(now, "ed", 7, headers={"kid": "ec-0"}),
    "other issuer": lambda now: signed(now, iss="https://evil.example.org"),
    "other audience": lambda now: signed(now, aud="billing"),
    "expired": lambda now: signed(now - 3_600),
    "not valid yet": lambda now: signed(now, nbf=now + 3_600),
    "for ever": lambda now: signed(now, exp=now + 10 * 365 * 86_400),
    "of the gateway": lambda now: signed(now, sub="maitred-gateway"),
    "of the administrator": lambda now: signed(now, sub="alice"),
    "without a group": lambda now: signed(now, groups=["*", "admin"]),
    "API token that never was": lambda _: f"mtd_{'0' * 16}_{'0' * 64}",
    "neither": lambda _: "x.y.z",
}


@in_a_loop
async def test_no_token_that_is_made_up_opens_anything(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(public_jwk("rsa"), public_jwk("ec")))
    async with place(tmp_path, jwt=settings(file)) as made:
        for make in ATTACKS.values():
            await refused_everywhere(made, make(made.clock.now))
        # The same with nothing wrong is let in.
        assert (await made.http(f"Authorization: Bearer {signed(made.clock.now)}")).status == 200


@in_a_loop
async def test_a_revoked_token_is_good_for_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob")
        await made.native(token)
        await made.revoke(token)
        await refused_everywhere(made, token)


@in_a_loop
async def test_a_token_makes_no_token_that_may_more(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False) as made:
        for token in (
            await made.token("bob"),
            await made.token("alice", permissions={"*": ["produce", "work", "query"]}),
        ):
            with pytest.raises(PermissionDenied):
                await (await made.native(token)).request(CreateToken(0, 0, "alice", 60.0))


@in_a_loop
async def test_nobody_says_who_made_a_token_for_others(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False) as made:
        admin = await made.admin()
        await admin.request(CreateToken(0, 0, "bob", 60.0, created_by="carol"))
        book = await made.node.shard._bearers.read()  # type: ignore[union-attr]
        assert [token.created_by for token in book.listed()] == ["alice"]


@in_a_loop
async def test_a_flood_of_tokens_that_never_were_keeps_nobody_out(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob")
        header = f"Authorization: Bearer {token}"
        assert (await made.http(header)).status == 200
        flood = [
            asyncio.create_task(made.http(f"Authorization: Bearer mtd_{n:016x}_{'0' * 64}"))
            for n in range(300)
        ]
        answers = [await made.http(header) for _ in range(20)]
        assert {answer.status for answer in answers} == {200}
        statuses = {(await one).status for one in flood}
        assert statuses <= {401, 429}
        try:
            await made.native(token)
        except MaitredError as problem:
            pytest.fail(f"the native listener: {problem}")
