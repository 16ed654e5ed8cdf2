"""What a shard writes into the audit log: logins, refusals, what operators do, changes of users."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import MaitredError, PermissionDenied, Unauthenticated
from maitred.protocol.access import CreateToken, Reload, RevokeToken, TokenCreated
from maitred.protocol.messages import Status
from maitred.protocol.queries import Workers
from maitred.protocol.tasks import (
    ControlQueue,
    DamagedRows,
    DeadLetters,
    DeleteQueue,
    PurgeTasks,
    Queues,
    Resize,
)
from maitred.security.users import GATEWAY
from maitred.settings import Audit, User
from tests.node.in_process import GATEWAY_SECRET, in_a_loop, until
from tests.node.querying import SECONDS, queries, stage
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "quite secret"  # noqa: S105 - looked for in the files
USERS = {
    "boss": User(secret=cheaply(SECRET), permissions={"*": ["admin"]}),
    "ann": User(secret=cheaply(SECRET), permissions={"n": ["query"]}),
}


def told(directory: Path, action: str, number: int = 0) -> list[dict[str, Any]]:
    path = directory / f"shard-{number}.jsonl"
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in found if one["action"] == action]


def audit(directory: Path) -> Audit:
    return Audit(directory=str(directory))


@in_a_loop
async def test_logins_and_refusals(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with stage(tmp_path, users=USERS, audit=audit(log)) as here:
        ann = await here.client("ann", SECRET)
        with pytest.raises(Unauthenticated):
            await here.client("ann", "a guess")
        with pytest.raises(PermissionDenied):
            await ann.request(here.workers("offline", "ant"), SECONDS)
        await until(lambda: len(told(log, "login")) >= 2 and bool(told(log, "workers")))
        logins = told(log, "login")
        assert {(one["user"], one["allowed"]) for one in logins} == {("ann", True), ("ann", False)}
        assert all(one["from"].startswith("127.0.0.1:") for one in logins)
        assert [one["reason"] for one in logins if not one["allowed"]] == ["unauthenticated"]
        (refused,) = told(log, "workers")
        assert (refused["user"], refused["allowed"]) == ("ann", False)
        assert "'read'" in refused["reason"]
        text = (log / "shard-0.jsonl").read_text()
        assert SECRET not in text
        assert "a guess" not in text


async def do(boss: Any, message: Any) -> Any:  # noqa: ANN401
    try:
        return await boss.request(message, SECONDS)
    except MaitredError:
        return None  # allowed, and nothing came of it


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_what_operators_do(tmp_path: Path, shards: int) -> None:
    log = tmp_path / "audit"
    async with stage(tmp_path, shards=shards, users=USERS, audit=audit(log)) as here:
        boss = await here.client("boss", SECRET)
        await boss.request(here.add(), SECONDS)
        at = ("n", here.queue, 1, 0, 0)
        created = await do(boss, CreateToken(0, 0, "ann", 60.0, "ci"))
        assert isinstance(created, TokenCreated)
        for message in (
            Resize(*at, 1, 1),
            ControlQueue(*at, "pause", "a bad release"),
            ControlQueue(*at, "set", settings={"rate_per_second": 5}, user="forged"),
            ControlQueue(*at, "show"),
            DeadLetters(*at, "drop", [1, 2]),
            DeadLetters(*at, "list"),
            DamagedRows(*at, "retry", [("dead", 1)], body=SECRET.encode()),
            DamagedRows(*at, "list"),
            DamagedRows(*at, "show", [("dead", 2)]),
            DamagedRows(*at, "show", [("dead", 3)], reveal=False),
            DeleteQueue(*at[:1], "other", *at[2:], force=True),
            here.workers("offline", "ant"),
            here.workers(),
            here.describe(),
            Queues(0, 0),
            Status(0, 0),
            queries("cancel", user="ann"),
            queries(),
            RevokeToken(0, 0, created.id),
            Reload(0, 0),
        ):
            await do(boss, message)

        def found(action: str) -> list[dict[str, Any]]:
            return [one for number in range(shards) for one in told(log, action, number)]

        await until(lambda: bool(found("reload")))
        name = f"n/{here.queue}"
        for action, target, details in (
            ("resize", name, {"read": 1, "write": 1}),
            ("control pause", name, {"reason": "a bad release", "of_user": "boss"}),
            ("control set", name, {"settings": {"rate_per_second": 5}, "of_user": "boss"}),
            ("dead drop", name, {"sequences": [1, 2], "partition": 0}),
            ("damaged retry", name, {"rows": [["dead", 1]], "body_bytes": len(SECRET)}),
            ("damaged show", name, {"rows": [["dead", 2]]}),
            ("delete", "n/other", {"force": True}),
            ("workers offline", name, {"worker": "ant"}),
            ("queries cancel", None, {"filter": {"user": "ann", "most": 100}}),
            ("create token", None, {"of_user": "ann", "label": "ci", "seconds": 60.0}),
            ("revoke token", None, {"id": created.id}),
            ("reload", None, {}),
        ):
            (one,) = found(action)
            assert (one["user"], one["allowed"], one.get("target")) == ("boss", True, target)
            assert one["from"].startswith("127.0.0.1:")
            assert {**one, **details} == one
        looks = (
            *(
                "control show",
                "dead list",
                "damaged list",
                "workers list",
                "workers",
                "describe",
                "queries list",
            ),
            *("queues", "status", "list tasks", "show task"),
        )
        for action in looks:
            assert not found(action)
        for number in range(shards):
            path = log / f"shard-{number}.jsonl"
            if path.exists():
                assert created.text not in path.read_text()
                assert SECRET not in path.read_text()


@in_a_loop
async def test_an_operator_who_is_no_admin_is_recorded_and_a_gateway_names_its_caller(
    tmp_path: Path,
) -> None:
    log = tmp_path / "audit"
    users = USERS | {"olga": User(secret=cheaply(SECRET), permissions={"n": ["operate"]})}
    async with stage(tmp_path, users=users, audit=audit(log)) as here:
        boss, olga = await here.client("boss", SECRET), await here.client("olga", SECRET)
        gateway = await here.client(GATEWAY, GATEWAY_SECRET)
        await boss.request(here.add(), SECONDS)
        at = ("n", here.queue, 1, 0, 0)
        forged: dict[str, Any] = {"user": "ann", "source": "10.0.0.9:1"}
        for client in (olga, gateway):
            await do(client, ControlQueue(*at, "pause", **forged))
            await do(client, ControlQueue(*at, "show", **forged))
            await do(client, Workers(*at, "online", "ant", **forged))
            await do(client, Resize(*at, 1, 1, **forged))
            await do(client, PurgeTasks(*at, "waiting", **forged))
            await boss.request(here.add(), SECONDS)
        await until(lambda: len(told(log, "purge waiting")) == 2)
        for action in ("control pause", "workers online", "resize", "purge waiting"):
            own, named = told(log, action)
            assert own["user"] == "olga"
            assert own["from"].startswith("127.0.0.1:")
            assert (named["user"], named["from"]) == ("ann", "10.0.0.9:1")
        assert not told(log, "control show")
        with pytest.raises(PermissionDenied, match="'admin'"):
            await olga.request(DamagedRows(*at, "retry", [("dead", 1)], body=b"mine"), SECONDS)
        await until(lambda: bool(told(log, "damaged")))
        (refused,) = told(log, "damaged")
        assert (refused["user"], refused["allowed"]) == ("olga", False)


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_wish_for_the_bodies_of_damaged_rows_is_recorded_if_it_is_refused(
    tmp_path: Path, shards: int
) -> None:
    log = tmp_path / "audit"
    users = USERS | {"olga": User(secret=cheaply(SECRET), permissions={"n": ["operate"]})}
    async with stage(tmp_path, shards=shards, users=users, audit=audit(log)) as here:
        boss, olga = await here.client("boss", SECRET), await here.client("olga", SECRET)
        await boss.request(here.add(), SECONDS)
        at = ("n", here.queue, 1, 0, 0)
        for message in (
            DamagedRows(*at, "list"),  # as clients of the release before ask, for no body
            DamagedRows(*at, "show", [("dead", 1)], reveal=False),
            DamagedRows(*at, "show", [("dead", 2)]),
            ControlQueue(*at, "pause"),
        ):
            await do(olga, message)

        def found(action: str) -> list[dict[str, Any]]:
            return [one for number in range(shards) for one in told(log, action, number)]

        await until(lambda: bool(found("control pause")))
        (refused,) = found("damaged")
        assert (refused["user"], refused["allowed"]) == ("olga", False)
        assert "'admin'" in refused["reason"]
        assert not found("damaged show")


@in_a_loop
async def test_changes_of_users(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    async with stage(tmp_path, shards=2, users=USERS, audit=audit(log)) as here:
        changed = {
            "boss": USERS["boss"],
            "ann": User(secret=USERS["ann"].secret, permissions={"*": ["admin"]}),
        }
        for shard in here.node.shards:
            await shard.reloading.reload(changed)
        await until(lambda: bool(told(log, "user change")))
        (one,) = told(log, "user change")
        assert one["target"] == "ann"
        assert one["permissions"] == {"*": ["admin"]}
        assert one["permissions_before"] == {"n": ["query"]}
        assert not told(log, "user change", 1)  # one shard tells for all
        counts = here.node.shard.audit
        assert counts is not None
        await until(lambda: counts.counts["written"] == 1)
