"""API tokens at both listeners of a running node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from maitred.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidToken,
    MaitredError,
    PermissionDenied,
    TokenExpired,
    TooManyTokens,
    Unauthenticated,
    UnknownToken,
    UnknownUser,
)
from maitred.protocol.access import (
    CreateToken,
    Introspect,
    Introspected,
    ListTokens,
    RevokeToken,
    TokensFound,
)
from maitred.settings import Tokens
from tests.node.in_process import in_a_loop, until
from tests.node.raw import PATIENCE_SECONDS
from tests.node.test_users import written
from tests.security.bearing import USERS, Place, place

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient


async def refused(client: AsyncClient, made: Place) -> MaitredError:
    """Until the client is refused, whatever comes before: a connection that is cut, say."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await made.lets_in(client)
            except ConnectionLost:
                continue
            except MaitredError as problem:
                return problem
            await asyncio.sleep(0.005)


@in_a_loop
async def test_a_token_opens_both_listeners_of_all_shards(tmp_path: Path) -> None:
    async with place(tmp_path, shards=2) as made:
        token = await made.token("bob")
        client = await made.native(token)
        await made.lets_in(client)
        with pytest.raises(PermissionDenied):
            await made.lets_in(client, "elsewhere")
        # By hand at each shard, at once: a token works as soon as it is made.
        for number in range(2):
            other = await made.token("bob")
            await made.node.ready(number, "token", other)
        answer = await made.http(f"Authorization: Bearer {token}")
        assert (answer.status, answer.body) == (200, b"1")
        assert made.asking.asked[0].ask.user == "bob"
        assert (await made.http(f"Authorization: Bearer {token}", namespace="x")).status == 403


@in_a_loop
async def test_one_that_is_wrong_opens_neither(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob")
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        with pytest.raises(InvalidToken):
            await made.native(wrong)
        answer = await made.http(f"Authorization: Bearer {wrong}")
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert b'"invalid-token"' in answer.body
        assert not made.asking.asked
        assert wrong not in str(made.node.log.lines)
        assert token not in str(made.node.log.lines)


@in_a_loop
async def test_a_narrower_token_may_do_what_both_allow(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob", permissions={"m": ["admin"]})
        client = await made.native(token)
        await made.lets_in(client, "m")
        with pytest.raises(PermissionDenied):
            await made.lets_in(client, "n")
        assert (await made.http(f"Authorization: Bearer {token}", namespace="m")).status == 200
        assert (await made.http(f"Authorization: Bearer {token}", namespace="n")).status == 403


@in_a_loop
async def test_a_token_expires_for_those_who_are_in(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob", 60.0)
        client = await made.native(token)
        await made.lets_in(client)
        assert (await made.http(f"Authorization: Bearer {token}")).status == 200
        made.clock.now += 60.0
        assert isinstance(await refused(client, made), TokenExpired)
        answer = await made.http(f"Authorization: Bearer {token}")
        assert answer.status == 401
        assert b'"token-expired"' in answer.body


@in_a_loop
async def test_a_revoked_token_ends_its_sessions_at_every_shard(tmp_path: Path) -> None:
    async with place(tmp_path, shards=2) as made:
        token, kept = await made.token("bob"), await made.token("bob")
        client, other = await made.native(token), await made.native(kept)
        await made.lets_in(client)
        raw = [await made.node.ready(number, "token", token) for number in range(2)]
        caller = await made.dial()
        header = f"Authorization: Bearer {token}"
        assert (await made.http(header, caller=caller)).status == 200
        await made.revoke(token)
        for one in raw:
            assert (await one.last_words()).code == "invalid-token"
        assert isinstance(await refused(client, made), InvalidToken)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await made.http(header, caller=caller)).status == 200:
                pass
        assert answer.status == 401
        caller.close()
        await made.lets_in(other)


@in_a_loop
async def test_what_is_under_way_over_http_ends_with_its_token(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob")
        hanging = asyncio.create_task(made.http(f"Authorization: Bearer {token}", queue="hang"))
        await until(lambda: bool(made.asking.asked))
        await made.revoke(token)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await hanging
        assert made.asking.cancelled


@in_a_loop
async def test_a_token_is_no_more_than_its_user(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(written({"bob": {"n": ["query"]}, "dora": {"n": ["query"]}}))
    async with place(tmp_path, users={"alice": USERS["alice"]}, users_file=str(file)) as made:
        bob, dora = await made.native(await made.token("bob")), await made.token("dora")
        theirs = await made.native(dora)
        await made.lets_in(bob)
        await made.lets_in(theirs)
        file.write_text(written({"bob": {"n": ["work"]}}))
        assert isinstance(await refused(bob, made), PermissionDenied)
        assert isinstance(await refused(theirs, made), InvalidToken)
        found = cast("TokensFound", await (await made.admin()).request(ListTokens(0, 0)))
        assert {row.user: row.user_exists for row in found.tokens} == {"bob": True, "dora": False}


@in_a_loop
async def test_only_those_who_look_after_the_node_make_and_see_tokens(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False) as made:
        for who in ("bob:builder@", "carol:sing@"):
            client = await made.client(who)
            for message in (
                CreateToken(0, 0, who.partition(":")[0], 60.0),
                ListTokens(0, 0),
                RevokeToken(0, 0, "0" * 16),
            ):
                with pytest.raises(PermissionDenied):
                    await client.request(message)
        narrow = await made.native(await made.token("alice", permissions={"n": ["admin"]}))
        with pytest.raises(PermissionDenied):
            await narrow.request(CreateToken(0, 0, "alice", 60.0))


@in_a_loop
async def test_what_is_refused_when_a_token_is_made(tmp_path: Path) -> None:
    settings = Tokens(most=2, lifetime_seconds=3_600.0)
    async with place(tmp_path, gateway=False, tokens=settings) as made:
        admin = await made.admin()
        with pytest.raises(UnknownUser, match="'bop'") as unknown:
            await admin.request(CreateToken(0, 0, "bop", 60.0))
        assert unknown.value.remedy == "Did you mean 'bob'?"
        for seconds in (3_601.0, 0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(InvalidArgument):
                await admin.request(CreateToken(0, 0, "bob", seconds))
        with pytest.raises(InvalidArgument):
            await admin.request(CreateToken(0, 0, "bob", 60.0, "", {"a:b": ["query"]}))
        with pytest.raises(UnknownToken):
            await admin.request(RevokeToken(0, 0, "0" * 16))
        await asyncio.gather(made.token("bob"), made.token("carol"))
        with pytest.raises(TooManyTokens):
            await made.token("bob")
        found = cast("TokensFound", await admin.request(ListTokens(0, 0)))
        assert {row.user for row in found.tokens} == {"bob", "carol"}
        assert {row.created_by for row in found.tokens} == {"alice"}


@in_a_loop
async def test_a_node_without_users_needs_no_tokens(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False, users={}) as made:
        with pytest.raises(InvalidArgument, match="no users"):
            await (await made.client()).request(CreateToken(0, 0, "bob", 60.0))


@in_a_loop
async def test_tokens_stay_good_while_the_store_does_not_answer(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        token = await made.token("bob")
        await made.native(token)
        made.disk.fail_for(3_600.0)
        await until(
            lambda: "API tokens not read; the last ones stay" in made.node.log.events("warning")
        )
        await made.lets_in(await made.native(token))
        with pytest.raises(Unauthenticated):
            await made.native("mtd_" + "0" * 16 + "_" + "0" * 64)
        made.disk.calm()
        await made.lets_in(await made.native(await made.token("bob")))
        told = made.node.log.events("warning").count("API tokens not read; the last ones stay")
        assert told == 1, "once for each time that it fails"


@in_a_loop
async def test_a_token_file_is_read_again_when_the_token_has_expired(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False) as made:
        file = tmp_path / "token"
        file.write_text(await made.token("bob", 60.0) + "\n")
        client = await made.client(token_file=str(file), backoff_longest_seconds=0.05)
        await made.lets_in(client)
        following = await made.token("bob", 3_600.0)
        file.write_text(following)
        made.clock.now += 60.0
        await made.node.ready(0, "token", following)

        await until(lambda: client.statistics().reconnects > 0)
        await made.lets_in(client)


@in_a_loop
async def test_whoever_is_logged_in_may_ask_whose_token_it_is(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False) as made:
        token = await made.token("bob", permissions={"n": ["query"]})
        asker = await made.client("carol:sing@")
        said = cast("Introspected", await asker.request(Introspect(0, 0, token)))
        assert (said.user, said.via, said.permissions) == ("bob", "token", {"n": ["query"]})
        said = cast("Introspected", await asker.request(Introspect(0, 0, token + "0")))
        assert (said.user, said.code) == ("", "invalid-token")
        assert token not in repr(Introspect(0, 0, token))


@in_a_loop
async def test_basic_credentials_may_carry_a_token(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        from tests.gateway.test_users import basic

        assert (await made.http(basic("token", await made.token("bob")))).status == 200
        assert (await made.http(basic("token", "wonder"))).status == 401


@in_a_loop
async def test_tokens_outlive_the_shards(tmp_path: Path) -> None:
    async with place(tmp_path, gateway=False) as made:
        token = await made.token("bob")
        made.node.kill(0)
        made.keep(await made.node.start_again(0))
        await made.node.ready(0, "token", token)
