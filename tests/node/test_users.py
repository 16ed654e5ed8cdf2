"""Who comes in, what they may do, and what happens when that changes while they are here."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import maitred
from maitred.errors import Overloaded
from maitred.protocol import cql
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.notation import Reader, blob
from maitred.security.authenticator import VERIFIED_AT_ONCE
from maitred.security.users import CREDENTIALS_IGNORED
from maitred.settings import Limits, User
from tests.node.in_process import LOOPS, in_a_loop, node, until
from tests.node.raw import (
    PATIENCE_SECONDS,
    credentials,
    echo,
    echoed_in,
    error_in,
    options,
    startup,
    status,
    status_in,
)
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.security.directory import Identity
    from tests.node.in_process import NodeUnderTest
    from tests.node.raw import RawClient

USERS = {
    "alice": User(secret=cheaply("wonder"), permissions={"*": ["admin"]}),
    "bob": User(secret=cheaply("builder"), permissions={"site": ["query"], "office": ["work"]}),
    "carol": User(secret=cheaply("sing")),
    "dora": User(secret=cheaply("explore"), permissions={"*": ["query"]}),
    "erin": User(secret=cheaply("green"), permissions={"site": ["admin"]}),
}

FILE_LOOKED_AT_OFTEN = Limits(frame_seconds=0.04)
"""The users' file is looked at as often as the clocks: every hundredth of a second."""


async def asked(running: NodeUnderTest) -> RawClient:
    """A connection that has been asked who it is."""
    client = await running.open()
    answer = await client.ask(startup())
    assert answer.opcode == Opcode.AUTHENTICATE
    assert Reader(answer.body).string() == cql.PASSWORD_AUTHENTICATOR
    return client


# Coming in


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_the_right_secret(loop: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, users=USERS) as running:
        client = await running.ready(0, "alice", "wonder")
        assert echoed_in(await client.ask(echo("q"))).payload == b"hello"


@pytest.mark.parametrize(
    ("user", "secret"),
    [
        ("alice", "wander"),
        ("alice", ""),
        ("alice", "wonder "),
        ("alice", "x" * 5000),
        ("nobody", "wonder"),
        ("", ""),
        ("Alice", "wonder"),
    ],
)
@in_a_loop
async def test_a_wrong_one(user: str, secret: str, tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await asked(running)
        client.write(credentials(user, secret, stream=6))
        answer = await client.frame()
        assert answer.stream == 6
        problem = error_in(answer)
        assert problem.code == "unauthenticated"
        assert answer.body[:4] == b"\x00\x00\x01\x00"  # CQL's number: drivers do not try again
        assert problem.sentence == "The user is not known, or the secret is wrong."
        await client.ended()
        assert running.log.events("warning") == ["authentication failed"]


@in_a_loop
async def test_a_stranger_cannot_fill_the_log(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await asked(running)
        client.write(credentials("x" * 60_000, "wonder"))
        assert (await client.last_words()).code == "unauthenticated"
        [(_, _, fields)] = [line for line in running.log.lines if line[0] == "warning"]
        assert fields["user"] == "x" * 60


@pytest.mark.parametrize(
    "body",
    [
        b"",
        blob(None),
        blob(b""),
        blob(b"alice wonder"),
        blob(b"\0alice"),
        blob(b"\0alice\0wonder\0"),
        blob(b"\0\xff\0wonder"),
        blob(b"\0alice\0\xff"),
        b"\x7f\xff\xff\xff",
    ],
)
@in_a_loop
async def test_credentials_that_are_none(body: bytes, tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await asked(running)
        answer = await client.ask(encode_frame(REQUEST, 0, 3, Opcode.AUTH_RESPONSE, body))
        assert error_in(answer).code == "protocol-violation"
        answer = await client.ask(credentials("alice", "wonder"))
        assert answer.opcode == Opcode.AUTH_SUCCESS


class HeldUp:
    """Verification that waits, in its thread, until it is let go: before it looks, or after."""

    def __init__(self, running: NodeUnderTest, *, before: bool = False) -> None:
        self.let_go = threading.Event()
        self.began = 0
        self._before = before
        self._sound = running.shard.users.authenticate
        running.shard.users.authenticate = self  # type: ignore[method-assign]

    def __call__(self, name: str, secret: str) -> Identity:
        self.began += 1
        if self._before:
            assert self.let_go.wait(PATIENCE_SECONDS)
            return self._sound(name, secret)
        identity = self._sound(name, secret)
        assert self.let_go.wait(PATIENCE_SECONDS)
        return identity


@in_a_loop
async def test_two_answers_to_the_question_at_once(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        held = HeldUp(running)
        client = await asked(running)
        client.write(credentials("alice", "wonder", 1) + credentials("alice", "wonder", 2))
        answer = await client.frame()
        assert answer.stream == 2
        assert error_in(answer).code == "protocol-violation"
        held.let_go.set()
        answer = await client.frame()
        assert (answer.stream, answer.opcode) == (1, Opcode.AUTH_SUCCESS)
        await client.lives()


@in_a_loop
async def test_verification_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """However long it takes: here until another connection has been answered twenty times."""
    async with node(tmp_path, users=USERS) as running:
        other = await running.ready(0, "alice", "wonder")
        held = HeldUp(running, before=True)
        clients = [await asked(running) for _ in range(6)]
        for number, client in enumerate(clients):
            client.write(credentials("alice", f"wrong {number}"))
        await until(lambda: held.began == VERIFIED_AT_ONCE)
        for _ in range(20):
            await other.lives()
        held.let_go.set()
        assert {(await client.last_words()).code for client in clients} == {"unauthenticated"}


@in_a_loop
async def test_few_are_verified_at_once_and_those_who_left_not_at_all(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        held = HeldUp(running, before=True)
        clients = [await asked(running) for _ in range(10)]
        for client in clients:
            client.write(credentials("alice", "wonder"))
        await until(lambda: held.began == 2)
        for client in clients:
            await client.lives()
        assert held.began == 2  # the others wait for their turn
        for client in clients[:9]:
            client.reset()
        await until(lambda: running.shard.client_connections == 1)
        held.let_go.set()
        assert (await clients[9].frame()).opcode == Opcode.AUTH_SUCCESS
        assert held.began <= 3
        assert not running.log.events("warning")


@in_a_loop
async def test_only_so_many_wait_to_be_verified(tmp_path: Path) -> None:
    """At the limit and past it: who comes too late is told to come again, not made to wait."""
    async with node(tmp_path, users=USERS, limits=Limits(verifications=4)) as running:
        held = HeldUp(running, before=True)
        waiting = [await asked(running) for _ in range(6)]
        for client in waiting:
            client.write(credentials("alice", "wonder"))
        await until(lambda: held.began == 2 and running.shard.authenticator.waiting == 4)
        late = await asked(running)
        late.write(credentials("alice", "wonder"))
        problem = await late.last_words()
        assert problem.code == "overloaded"
        assert isinstance(problem, Overloaded)
        assert problem.retry_after
        held.let_go.set()
        for client in waiting:
            assert (await client.frame()).opcode == Opcode.AUTH_SUCCESS
        again = await asked(running)
        again.write(credentials("bob", "builder"))
        assert (await again.frame()).opcode == Opcode.AUTH_SUCCESS


@in_a_loop
async def test_failed_logins_do_not_flood_the_log(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS, limits=Limits(failures_per_user=100)) as running:
        for number in range(30):
            client = await asked(running)
            client.write(credentials("alice", f"wrong {number}"))
            assert (await client.last_words()).code == "unauthenticated"
        assert 1 <= len(running.log.events("warning")) < 10
        assert running.shard.errors["unauthenticated"] == 30  # all of them are counted
        assert running.shard.authenticator.outcomes["wrong"] == 30


@pytest.mark.parametrize("secret", ["wonder", "wander"])
@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_leaving_while_being_verified(loop: str, secret: str, tmp_path: Path) -> None:  # noqa: ARG001
    async with node(tmp_path, users=USERS) as running:
        client = await asked(running)
        client.write(credentials("alice", secret) + options(1))
        await client.frame()
        client.reset()
        await until(lambda: not running.shard.connections)
        await until(lambda: len(running.shard._tasks) == 1)  # the sweep
        assert not running.log.events("error"), running.log.lines


@in_a_loop
async def test_the_time_for_the_handshake_counts_while_waiting(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS, limits=Limits(handshake_seconds=60)) as running:
        held = HeldUp(running)
        client = await asked(running)
        client.write(credentials("alice", "wonder"))
        await until(lambda: held.began == 1)
        [connection] = running.shard.connections
        connection.look_at_clock(running.shard.loop.time() + 60)
        assert (await client.last_words()).code == "too-slow"
        held.let_go.set()
        await until(lambda: len(running.shard._tasks) == 1)


# What they may do


@pytest.mark.parametrize(
    ("user", "secret", "namespace", "allowed"),
    [
        ("alice", "wonder", "anywhere", True),
        ("bob", "builder", "site", True),
        ("bob", "builder", "office", False),  # work, not query
        ("bob", "builder", "anywhere", False),
        ("carol", "sing", "site", False),
        ("dora", "explore", "anywhere", True),
        ("erin", "green", "site", True),  # admin of it
        ("erin", "green", "office", False),
        ("bob", "builder", "*", False),
    ],
)
@in_a_loop
async def test_permissions_by_namespace(
    user: str, secret: str, namespace: str, allowed: bool, tmp_path: Path
) -> None:
    async with node(tmp_path, shards=2, users=USERS) as running:
        client = await running.ready(0, user, secret)
        for owner in (0, 1):
            answer = await client.ask(
                echo(running.queue_of(owner, namespace), namespace=namespace, hold=1)
            )
            if allowed:
                assert echoed_in(answer).shard == owner
            else:
                problem = error_in(answer)
                assert problem.code == "permission-denied"
                assert user in problem.sentence
                assert "query" in problem.sentence
        await client.lives()
        assert running.shards[1].received_forwarded == int(allowed)


@pytest.mark.parametrize(
    ("user", "secret", "allowed"),
    [
        ("alice", "wonder", True),
        ("erin", "green", False),  # admin of one namespace is not admin of the node
        ("dora", "explore", False),
        ("carol", "sing", False),
    ],
)
@in_a_loop
async def test_status_is_for_admins(user: str, secret: str, allowed: bool, tmp_path: Path) -> None:
    async with node(tmp_path, shards=2, users=USERS) as running:
        client = await running.ready(0, user, secret)
        for shard in (0, 1):
            answer = await client.ask(status(shard))
            if allowed:
                assert status_in(answer).shard == shard
            else:
                assert error_in(answer).code == "permission-denied"


# Changes


def written(users: dict[str, dict[str, list[str]]], secret: str = "same") -> str:  # noqa: S107
    hashed = cheaply(secret)
    lines = []
    for name, permissions in users.items():
        lines += [f"[users.{name}]", f'secret = "{hashed}"']
        granted = ", ".join(f'"{space}" = {given}' for space, given in permissions.items())
        lines += [f"permissions = {{{granted}}}".replace("'", '"')]
    return "\n".join(lines) + "\n"


@in_a_loop
async def test_users_change_while_they_are_connected(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(written({"gone": {"*": ["query"]}, "kept": {"*": ["query"]}}))
    async with node(
        tmp_path, users_file=str(file), limits=FILE_LOOKED_AT_OFTEN, users=USERS
    ) as running:
        gone = await running.ready(0, "gone", "same")
        kept = await running.ready(0, "kept", "same")
        alice = await running.ready(0, "alice", "wonder")
        gone.write(echo("q", stream=4, hold=30_000))
        await until(lambda: running.shard.in_flight == 1)
        file.write_text(written({"kept": {"site": ["query"]}, "new": {"*": ["query"]}}))
        answer = await gone.frame()
        assert answer.stream == -1
        assert error_in(answer).code == "unauthenticated"
        await gone.ended()
        assert running.shard.in_flight == 0
        assert error_in(await kept.ask(echo("q"))).code == "permission-denied"
        assert echoed_in(await kept.ask(echo("q", namespace="site"))).payload == b"hello"
        assert echoed_in(await alice.ask(echo("q"))).payload == b"hello"
        new = await running.ready(0, "new", "same")
        assert echoed_in(await new.ask(echo("q"))).payload == b"hello"
        late = await asked(running)
        late.write(credentials("gone", "same"))
        assert (await late.last_words()).code == "unauthenticated"


@in_a_loop
async def test_reading_many_users_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """However long it takes, and it is begun once."""
    file = tmp_path / "users.toml"
    file.write_text(written({"kept": {"*": ["query"]}, "gone": {"*": ["query"]}}))
    async with node(tmp_path, users_file=str(file), limits=FILE_LOOKED_AT_OFTEN) as running:
        kept = await running.ready(0, "kept", "same")
        gone = await running.ready(0, "gone", "same")
        sound, let_go = running.shard.users.reload, threading.Event()
        began: list[threading.Thread] = []

        def slow() -> bool:
            began.append(threading.current_thread())
            assert let_go.wait(PATIENCE_SECONDS)
            return sound()

        running.shard.users.reload = slow  # type: ignore[method-assign,assignment]
        file.write_text(written({"kept": {"*": ["query"]}}))
        await until(lambda: bool(began))
        assert began[0] is not threading.current_thread()
        for _ in range(5):
            await asyncio.sleep(0.01)  # more looks at the file
            await kept.lives()
        assert len(began) == 1
        let_go.set()
        assert (await gone.last_words()).code == "unauthenticated"
        await kept.lives()


def rotating(secret: str, previous: str | None = None) -> str:
    lines = ["[users.kept]", f'secret = "{cheaply(secret)}"', 'permissions."*" = ["query"]']
    if previous is not None:
        lines.insert(2, f'previous_secret = "{cheaply(previous)}"')
    return "\n".join(lines) + "\n"


@in_a_loop
async def test_a_secret_is_replaced_without_a_gap(tmp_path: Path) -> None:
    """Old, then both, then the new one: nobody is disconnected who has moved in time."""
    file = tmp_path / "users.toml"
    file.write_text(rotating("old"))
    async with node(tmp_path, users_file=str(file), limits=FILE_LOOKED_AT_OFTEN) as running:
        users = running.shard.users
        late = await running.ready(0, "kept", "old")
        file.write_text(rotating("new", "old"))
        await until(lambda: users.generation == 2)
        await late.lives()
        moved = await running.ready(0, "kept", "new")
        also_old = await running.ready(0, "kept", "old")
        wrong = await asked(running)
        wrong.write(credentials("kept", "neither"))
        assert (await wrong.last_words()).code == "unauthenticated"
        file.write_text(rotating("new"))
        assert (await late.last_words()).code == "unauthenticated"
        assert (await also_old.last_words()).code == "unauthenticated"
        await moved.lives()
        over = await asked(running)
        over.write(credentials("kept", "old"))
        assert (await over.last_words()).code == "unauthenticated"


@in_a_loop
async def test_a_new_secret_ends_the_old_connections(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(written({"kept": {"*": ["query"]}}))
    async with node(tmp_path, users_file=str(file), limits=FILE_LOOKED_AT_OFTEN) as running:
        client = await running.ready(0, "kept", "same")
        file.write_text(written({"kept": {"*": ["query"]}}, "other"))
        assert (await client.last_words()).code == "unauthenticated"
        await running.ready(0, "kept", "other")


@pytest.mark.parametrize(
    "broken",
    ["this is not TOML", "[users.kept]\nsecret = 'plain'\n", "[users.kept]\n", None],
    ids=["no TOML", "no hash", "no secret", "no file"],
)
@in_a_loop
async def test_a_broken_file_keeps_the_old_users(broken: str | None, tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    good = written({"kept": {"*": ["query"]}})
    file.write_text(good)
    async with node(tmp_path, users_file=str(file), limits=FILE_LOOKED_AT_OFTEN) as running:
        client = await running.ready(0, "kept", "same")
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        await until(lambda: bool(running.log.events("error")))
        assert echoed_in(await client.ask(echo("q"))).payload == b"hello"
        await running.ready(0, "kept", "same")
        # And it is read again when it is whole again.
        file.write_text(written({"new": {"*": ["query"]}}))
        assert (await client.last_words()).code == "unauthenticated"
        await running.ready(0, "new", "same")
        assert running.log.events("error") == ["users not read again; the old state stays"]  # once
        assert running.shard.reloading.outcomes == {("users", "failed"): 1, ("users", "changed"): 1}


@in_a_loop
async def test_removed_while_being_verified(tmp_path: Path) -> None:
    """Between the verification and its end the user has gone; so must the connection."""
    file = tmp_path / "users.toml"
    file.write_text(written({"gone": {"*": ["query"]}}))
    async with node(tmp_path, users_file=str(file), limits=FILE_LOOKED_AT_OFTEN) as running:
        held = HeldUp(running)
        client = await asked(running)
        client.write(credentials("gone", "same"))
        await until(lambda: held.began == 1)
        file.write_text(written({"new": {"*": ["query"]}}))
        await until(lambda: running.shard.users.generation == 2)
        held.let_go.set()
        assert (await client.last_words()).code == "unauthenticated"


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_credentials_that_nobody_looks_at_draw_a_warning_at_both_ends(
    tmp_path: Path, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path, shards=shards) as running:
        address = f"127.0.0.1:{running.port}"
        async with maitred.connect(f"maitred://{address}") as client:
            await client.covered()
        assert not caplog.messages
        assert not warnings_of(running)
        for _ in range(2):
            async with maitred.connect(f"maitred://alice:wonder@{address}") as client:
                await client.covered()
        assert len(caplog.messages) == 2, "one a client"
        assert "has no users" in caplog.messages[0]
        assert "wonder" not in caplog.text
        assert len(warnings_of(running)) == shards


def warnings_of(running: NodeUnderTest) -> list[str]:
    return [event for _, event, _ in running.log.lines if event == CREDENTIALS_IGNORED]


@in_a_loop
async def test_credentials_that_are_looked_at_draw_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        node(tmp_path, users=USERS) as running,
        maitred.connect(f"maitred://alice:wonder@127.0.0.1:{running.port}") as client,
    ):
        await client.covered()
        assert not caplog.messages
        assert not warnings_of(running)
