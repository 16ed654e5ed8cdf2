"""The admin API in front of a real node: what it shows, what it changes, and for whom."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack, structs

from maitred.client.task_rows import shown_row, task_row
from maitred.gateway.admin.answers import HistoryRow, TaskHistory, TaskRow
from maitred.gateway.http.admin import BODIES
from maitred.gateway.http.routes import ROUTES
from maitred.protocol.inspection import HistoryEvent, ListedTask, TaskShown
from maitred.protocol.tasks import Failure
from maitred.routing.names import QueueId
from tests.gateway.admin_stage import USERS, AdminStage, admin_stage
from tests.gateway.fakes import Caller, get
from tests.node.in_process import in_a_loop, until

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

QUEUE = "/v1/shop/queues/mails"
CARD = "4111-1111-1111-1111"
FAILURE = Failure("CardError", f"no money on {CARD}", f"line 1: {CARD}")
NOWHERE = "/v1/shop/queues/males"


async def staged(here: AdminStage) -> tuple[AsyncClient, list[int]]:
    """A worker, a dead letter, and three tasks, one of which runs and one of which is delayed."""
    client = await here.client()
    await here.attend(client, "mails")
    (dead,) = await here.serve_dead(client, "mails", [[1, CARD]], FAILURE)
    running, waiting = await here.add(client, "mails", [[2, CARD], {"order": 3, "card": CARD}])
    (task,) = await here.take(client, "mails")
    assert task.sequence == running
    (delayed,) = await here.add(client, "mails", [[4]], delay=600.0)
    return client, [dead, running, waiting, delayed]


# Who asks


@in_a_loop
async def test_who_asks_is_told_what_he_may_do(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        me = await here.get("/v1/me", user="reader")
        assert me["user"] == "reader"
        assert me["permissions"] == {"shop": ["read"]}
        assert me["with_users"]
        assert me["node"] == f"127.0.0.1:{here.node.port}"
        assert "secret" not in json.dumps(me)
        operator = await here.get("/v1/me", user="operator")
        assert operator["permissions"] == {"shop": ["operate", "read"]}
        status, said = await here.call("GET", "/v1/me", user="")
        assert (status, said["error"]["code"]) == (401, "unauthenticated")


@in_a_loop
async def test_without_users_everybody_may_do_everything(tmp_path: Path) -> None:
    async with admin_stage(tmp_path, users={}) as here:
        me = await here.get("/v1/me")
        assert (me["user"], me["with_users"]) == (None, False)
        assert {"admin", "reveal", "operate"} <= set(me["permissions"]["*"])
        client = await here.client()
        (number,) = await here.add(client, "mails", [[1]])
        assert (await here.post(f"{QUEUE}/pause", {}))["controls"]["pause"]["by"] == ""
        body = {"action": "cancel", "ids": [f"0/{number}"]}
        assert (await here.post(f"{QUEUE}/tasks/actions", body))["done"] == 1


PATHS = {
    "{namespace}": "shop",
    "{queue}": "mails",
    "{partition}": "0",
    "{sequence}": "77",
    "{worker}": "ant",
}
NEEDED = {
    "describe_queue": "read",
    "delete_queue": "operate",
    "list_tasks": "read",
    "task_history": "read",
    "act_on_tasks": "operate",
    "list_dead_groups": "read",
    "pause_queue": "operate",
    "resume_queue": "operate",
    "set_queue": "operate",
    "resize_queue": "operate",
    "purge_queue": "operate",
    "list_handlers": "read",
    "worker_offline": "operate",
    "worker_online": "operate",
}
"""The routes of one queue, and the permission that each needs."""


@in_a_loop
async def test_each_route_needs_its_permission_in_its_namespace(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        tried = set()
        for route in ROUTES:
            if route.handler not in NEEDED:
                continue
            tried.add(route.handler)
            path = route.path
            for name, value in PATHS.items():
                path = path.replace(name, value)
            body: Any = {"wrong field": 1} if route.handler in BODIES else None
            for user in ("reader", "operator", "auditor", "stranger", "customer"):
                granted = USERS[user].permissions.get("shop", [])
                may = NEEDED[route.handler] in granted or (
                    NEEDED[route.handler] == "read" and "operate" in granted
                )
                if may and route.handler == "delete_queue":
                    continue  # it would be done
                status, said = await here.call(route.method, path, body, user=user)
                assert (status == 403) == (not may), (route.handler, user, said)
                if not may:
                    assert said["error"]["code"] == "permission-denied"
                    assert NEEDED[route.handler] in said["error"]["message"]
        assert tried == NEEDED.keys()
        assert (await here.call("GET", "/v1/nodes", user="reader"))[0] == 403, "only in '*'"


# Tasks


@in_a_loop
async def test_tasks_are_listed_by_state_and_filter(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        _, (dead, running, waiting, delayed) = await staged(here)

        async def numbers(**params: Any) -> list[int]:  # noqa: ANN401
            found = await here.get(f"{QUEUE}/tasks", **params)
            assert (found["cursor"], found["more"], found["unreachable"]) == (None, False, [])
            return [one["sequence"] for one in found["tasks"]]

        assert await numbers() == [running, waiting, delayed, dead]
        assert await numbers(state="running") == [running]
        assert await numbers(state="dead") == [dead]
        assert await numbers(state="ended") == []
        assert await numbers(worker="ant", state="running") == [running]
        assert await numbers(worker="bee") == []
        assert await numbers(error="carderr") == [dead]
        assert await numbers(error="no money") == [dead]
        assert await numbers(by="boss") == [running, waiting, delayed, dead]
        assert await numbers(by="somebody") == []
        assert await numbers(added_after=2e9) == []
        assert await numbers(added_before=2e9, state="waiting") == [waiting]
        assert await numbers(argument="order=3") == [waiting]
        assert await numbers(argument=f'card="{CARD}"') == []
        (row,) = (await here.get(f"{QUEUE}/tasks", state="running"))["tasks"]
        assert row["id"] == f"shop/mails/0/{running}"
        assert (row["state"], row["worker"], row["attempts"]) == ("running", "ant", 1)
        assert row["by"] == "boss@127.0.0.1"
        assert (row["arguments"], row["withheld"]) == (None, "")


@in_a_loop
async def test_private_data_need_the_permission_and_the_wish(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        _, (dead, *_) = await staged(here)
        shown = [{"order": 1, "card": "[hidden]"}, FAILURE.message, ""]
        withheld = [None, "", "permission"]
        for user, wish, expected in (
            ("reader", True, withheld),
            ("operator", True, withheld),
            ("auditor", True, shown),
            ("auditor", False, [None, "", ""]),
            ("boss", True, shown),
        ):
            wishes = {"reveal": "true"} if wish else {}
            found = await here.get(f"{QUEUE}/tasks", user=user, state="dead", **wishes)
            (row,) = found["tasks"]
            assert [row["arguments"], row["message"], row["withheld"]] == expected, (user, wish)
            assert row["error"] == "CardError"
            died_at = row["ended_at"]
            path = f"{QUEUE}/tasks/0/{dead}/history"
            history = await here.get(path, user=user, **wishes)
            row = history["task"]
            assert [row["arguments"], row["message"], row["withheld"]] == expected, (user, wish)
            assert history["traceback"] == (FAILURE.traceback if expected is shown else "")
            assert any(one["message"] for one in history["events"]) == (expected is shown)
            groups = await here.get(f"{QUEUE}/dead-groups", user=user)
            message = FAILURE.message if user in ("auditor", "boss") else ""
            assert groups["groups"] == [
                {
                    "error": "CardError",
                    "message": message,
                    "reason": "failed",
                    "count": 1,
                    "newest_at": died_at,
                    "example": f"0/{dead}",
                }
            ]
        # A filter does not tell either.
        for user in ("reader", "operator"):
            listed = await here.get(f"{QUEUE}/tasks", user=user, error="no money")
            assert listed["tasks"] == []
            argument = {"argument": {"name": "order", "value": 1}}
            refused = [
                await here.call("GET", f"{QUEUE}/tasks?argument=order%3D1", user=user),
                await here.call(
                    "POST",
                    f"{QUEUE}/tasks/actions",
                    {"action": "drop", "filter": argument, "dry_run": True},
                    user="operator",
                ),
            ]
            for status, said in refused:
                assert (status, said["error"]["code"]) == (403, "permission-denied")
                assert "'reveal'" in said["error"]["message"]
        # A filter that needs private data does not show them.
        found = await here.get(f"{QUEUE}/tasks", user="auditor", argument="order=1")
        (row,) = found["tasks"]
        assert [row["arguments"], row["message"], row["withheld"]] == [None, "", ""]


@in_a_loop
async def test_a_result_is_private_and_what_is_hidden_stays_hidden(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails")
        (number,) = await here.add(client, "mails", [[1, CARD]])
        (task,) = await here.take(client, "mails")
        await here.finish(client, "mails", task, {"paid": 1, "from": CARD, b"raw": b"\x00\xff"})
        path = f"{QUEUE}/tasks/0/{number}/history"
        told = await here.get(path, user="auditor", reveal="true")
        assert (told["task"]["state"], told["result_withheld"]) == ("done", "")
        assert told["result"]["paid"] == 1
        assert CARD not in json.dumps(told)
        assert told["function"] == "pay"
        kinds = [event["what"] for event in told["events"]]
        assert kinds[:2] == ["added", "started"]
        assert "done" in kinds
        told = await here.get(path, user="reader", reveal="true")
        assert (told["result"], told["result_withheld"]) == (None, "permission")


def test_rows_have_what_other_programs_get_in_json() -> None:
    queue = QueueId("shop", "mails", 1)
    task = ListedTask(partition=0, sequence=1, state="dead")
    assert task_row(queue, task).keys() == set(TaskRow.__struct_fields__)
    shown = TaskShown(task=task, events=[])
    assert shown_row(queue, shown).keys() == set(TaskHistory.__struct_fields__)
    assert set(HistoryEvent.__struct_fields__) == set(HistoryRow.__struct_fields__)


@in_a_loop
async def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        added = await here.add(client, "mails", [[number] for number in range(25)])
        await here.add(client, "others", [[1]])
        seen: list[int] = []
        cursor, params = None, {"most": "10", "state": "waiting"}
        cursors = []
        while True:
            page = await here.get(
                f"{QUEUE}/tasks", **params, **({"cursor": cursor} if cursor else {})
            )
            assert len(page["tasks"]) <= 10
            seen += [one["sequence"] for one in page["tasks"]]
            cursor = page["cursor"]
            if cursor is None:
                break
            cursors.append(cursor)
        assert seen == added
        assert len(cursors) >= 2
        bad = {
            "garbage": f"{QUEUE}/tasks?most=10&state=waiting&cursor=garbage!",
            "truncated": f"{QUEUE}/tasks?most=10&state=waiting&cursor={cursors[0][:-3]}",
            "another queue": f"/v1/shop/queues/others/tasks?state=waiting&cursor={cursors[0]}",
            "another state": f"{QUEUE}/tasks?cursor={cursors[0]}",
            "another filter": f"{QUEUE}/tasks?state=waiting&by=x&cursor={cursors[0]}",
            "another list": f"{QUEUE}/dead-groups?cursor={cursors[0]}",
        }
        for what, path in bad.items():
            status, said = await here.call("GET", path)
            assert (status, said["error"]["code"]) == (400, "invalid-argument"), what


@in_a_loop
async def test_dead_letters_are_grouped_by_error(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails")
        first = await here.serve_dead(client, "mails", [[1], [2]], FAILURE)
        second = await here.serve_dead(client, "mails", [[3]], Failure("CardError", "stolen"))
        third = await here.serve_dead(client, "mails", [[4]], Failure("Timeout", "too slow"))
        assert third
        found = await here.get(f"{QUEUE}/dead-groups")
        told = [(one["error"], one["message"], one["count"]) for one in found["groups"]]
        assert told == [
            ("CardError", FAILURE.message, 2),
            ("CardError", "stolen", 1),
            ("Timeout", "too slow", 1),
        ]
        assert found["groups"][0]["example"] == f"0/{first[-1]}"
        assert (found["looked_at"], found["more"], found["cursor"]) == (4, False, None)
        found = await here.get(f"{QUEUE}/dead-groups", user="reader")
        told = [(one["error"], one["message"], one["count"]) for one in found["groups"]]
        assert told == [("CardError", "", 3), ("Timeout", "", 1)]
        assert found["groups"][0]["example"] == f"0/{second[0]}"


# Actions


@in_a_loop
async def test_named_tasks_are_changed(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client, (dead, running, waiting, delayed) = await staged(here)
        actions = f"{QUEUE}/tasks/actions"

        async def act(action: str, *sequences: int) -> Any:  # noqa: ANN401
            ids = [f"0/{one}" for one in sequences]
            return await here.post(
                actions, {"action": action, "ids": ids, "reason": "why"}, user="operator"
            )

        done = await act("run-now", delayed)
        assert (done["done"], done["left"], done["matched"]) == (1, {}, 1)
        done = await act("cancel", running, waiting, dead, 77)
        assert done["done"] == 2
        assert done["left"] == {f"0/{dead}": "over", "0/77": "unknown"}
        assert (done["matched"], done["cursor"], done["unreachable"]) == (4, None, [])
        done = await act("again", dead)
        ((old, new),) = done["added"].items()
        assert old == f"0/{dead}"
        rows = (await here.get(f"{QUEUE}/tasks", state="waiting"))["tasks"]
        assert new in [f"{one['partition']}/{one['sequence']}" for one in rows]
        assert next(one for one in rows if new.endswith(str(one["sequence"])))["by"].startswith(
            "operator"
        )
        assert (await act("drop", dead))["done"] == 1
        assert (await here.get(f"{QUEUE}/tasks", state="dead"))["tasks"] == []
        assert client is not None


@in_a_loop
async def test_tasks_that_pass_a_filter_are_changed_step_by_step(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails")
        await here.serve_dead(client, "mails", [[1], [2]], FAILURE)
        await here.serve_dead(client, "mails", [[3]], Failure("Timeout", "too slow"))
        actions = f"{QUEUE}/tasks/actions"
        body: dict[str, Any] = {"action": "drop", "filter": {"error": "CardError"}}
        counted = await here.post(actions, body | {"dry_run": True}, user="operator")
        assert (counted["matched"], counted["done"], counted["cursor"]) == (2, 0, None)
        assert len((await here.get(f"{QUEUE}/tasks", state="dead"))["tasks"]) == 3
        done = 0
        while True:
            step = await here.post(actions, body, user="operator")
            done += step["done"]
            if step["cursor"] is None:
                break
            body["cursor"] = step["cursor"]
        assert done == 2
        (left,) = (await here.get(f"{QUEUE}/tasks", state="dead"))["tasks"]
        assert left["error"] == "Timeout"
        # By text of the message, for who may see it.
        text = {"action": "retry", "state": "dead", "filter": {"error": "too slow"}}
        assert (await here.post(actions, text, user="operator"))["done"] == 0
        assert (await here.post(actions, text, user="boss"))["done"] == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"action": "drop", "ids": ["0/1"], "state": "dead"}, "and a filter as well"),
        ({"action": "drop", "ids": ["0/1"], "dry_run": True}, "dry run"),
        ({"action": "drop", "ids": ["mails"]}, "'mails'"),
        ({"action": "drop", "ids": ["0/1/2"]}, "'0/1/2'"),
        ({"action": "drop", "state": "running"}, "running"),
        ({"action": "again"}, "which tasks"),
        ({"action": "drop", "cursor": "garbage"}, "cursor"),
        ({"action": "drop", "filter": {"eror": "x"}}, "Did you mean 'error'"),
        ([], "is no object"),
    ],
)
@in_a_loop
async def test_a_wrong_action_says_what_is_wrong(tmp_path: Path, body: Any, said: str) -> None:  # noqa: ANN401
    async with admin_stage(tmp_path, shards=1) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        status, answer = await here.call("POST", f"{QUEUE}/tasks/actions", body)
        assert status == 400, answer
        assert said in f"{answer['error']['message']} {answer['error']['remedy']}"


# Queues


@in_a_loop
async def test_a_queue_is_paused_and_set_and_resumed(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        paused = await here.post(f"{QUEUE}/pause", {"reason": "a bad release"}, user="operator")
        assert (paused["changed"], paused["partitions"], paused["told"]) == (True, 1, 1)
        pause = paused["controls"]["pause"]
        assert (pause["by"], pause["reason"]) == ("operator", "a bad release")
        version = paused["controls"]["version"]
        stale = {"expect_version": version + 1}
        for method, path, body in (
            ("POST", "resume", stale),
            ("PATCH", "settings", {"set": {"rate_per_second": 1}, **stale}),
        ):
            status, said = await here.call(method, f"{QUEUE}/{path}", body)
            assert (status, said["error"]["code"]) == (409, "controls-conflict")
        done = await here.post(
            f"{QUEUE}/settings",
            {"set": {"rate_per_second": 5}, "expect_version": version},
            method="PATCH",
        )
        state = await here.get(QUEUE, user="reader")
        assert state["controls"] == done["controls"]
        assert state["settings"]["rate_per_second"]["value"] == 5.0
        assert state["settings"]["rate_per_second"]["source"] == "live"
        assert state["settings"]["scaling.adaptive"]["source"] == "default"
        await here.post(f"{QUEUE}/settings", {"unset": ["rate_per_second"]}, method="PATCH")
        resumed = await here.post(f"{QUEUE}/resume", {})
        assert resumed["controls"]["pause"] is None
        assert resumed["controls"]["settings"] == {}
        for body, code in (
            ({"set": {"rate_per_secnd": 5}}, "unknown-setting"),
            ({"set": {"rate_per_second": -5}}, "invalid-setting"),
            ({}, "invalid-argument"),
        ):
            status, said = await here.call("PATCH", f"{QUEUE}/settings", body)
            assert (status, said["error"]["code"]) == (400, code)


@in_a_loop
async def test_partitions_change_and_the_queue_is_deleted(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        numbers = {"read": 3, "write": 2}
        counts = await here.post(f"{QUEUE}/partitions", numbers, user="operator")
        assert (counts["read"], counts["write"]) == (3, 2)
        state = await here.get(QUEUE)
        assert len(state["partitions"]) == 3
        status, said = await here.call("POST", f"{QUEUE}/partitions", {"read": 1, "write": 1})
        assert (status, said["error"]["code"]) == (409, "unsafe-partition-change")
        status, said = await here.call("POST", f"{QUEUE}/partitions", {"read": 1, "write": 2})
        assert status == 400
        status, said = await here.call("DELETE", QUEUE, user="operator")
        assert (status, said["error"]["code"]) == (409, "queue-in-use")
        status, said = await here.call("DELETE", f"{QUEUE}?force=true", user="operator")
        assert (status, said["tasks"], said["partitions"]) == (200, 1, 3)
        for method, path, body in (
            ("DELETE", QUEUE, None),
            ("POST", f"{QUEUE}/partitions", numbers),
            ("POST", f"{QUEUE}/pause", {}),
            ("POST", f"{QUEUE}/purge", {}),
            ("GET", f"{QUEUE}/tasks", None),
            ("GET", f"{QUEUE}/handlers", None),
            ("POST", f"{QUEUE}/tasks/actions", {"action": "drop"}),
            ("POST", f"{QUEUE}/tasks/actions", {"action": "drop", "ids": ["0/77"]}),
        ):
            status, said = await here.call(method, path, body)
            assert (status, said["error"]["code"]) == (404, "unknown-queue"), (method, path)
        assert (await here.call("GET", QUEUE))[0] == 404, "and nothing has created it"


@in_a_loop
async def test_waiting_tasks_are_purged(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails")
        await here.serve_dead(client, "mails", [[1]], FAILURE)
        await here.add(client, "mails", [[2], [3]])
        await here.add(client, "mails", [[4]], delay=600.0)
        await here.post(f"{QUEUE}/partitions", {"read": 3, "write": 3})
        purge = f"{QUEUE}/purge"

        async def purged(**body: Any) -> dict[str, int]:  # noqa: ANN401
            tasks: dict[str, int] = {}
            while True:
                answer = await here.post(purge, body, user="operator")
                assert answer["unreachable"] == []
                for state, count in answer["tasks"].items():
                    tasks[state] = tasks.get(state, 0) + count
                if answer["cursor"] is None:
                    return tasks
                body["cursor"] = answer["cursor"]

        assert await purged(dry_run=True) == {"waiting": 2, "delayed": 1}
        assert await purged(older_than=3600.0) == {"waiting": 0}
        assert await purged(states=["dead"], dry_run=True) == {"dead": 1}
        assert await purged(reason="a mistake") == {"waiting": 2, "delayed": 1}
        assert await purged() == {"waiting": 0, "delayed": 0}
        assert await purged(states=["dead", "waiting"]) == {"dead": 1, "waiting": 0}
        for body in (
            {"older_than": 1.0, "states": ["delayed"]},
            {"cursor": "garbage"},
            {"states": ["runing"]},
        ):
            assert (await here.call("POST", purge, body))[0] == 400


@in_a_loop
async def test_handlers_are_told_for_forms(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        found = await here.get(f"{QUEUE}/handlers", user="reader")
        assert found == {"functions": [], "takes_anything": True, "served_seconds_ago": None}
        await here.attend(client, "mails")
        found = await here.get(f"{QUEUE}/handlers", user="reader")
        assert found["functions"] == [
            {
                "function": "pay",
                "parameters": [
                    {"name": "order", "type": "int", "required": True, "hidden": False},
                    {"name": "card", "type": "str", "required": False, "hidden": True},
                ],
            }
        ]
        assert (found["takes_anything"], found["served_seconds_ago"]) == (False, 0.0)


@in_a_loop
async def test_a_worker_is_taken_offline(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        await here.attend(client, "mails")
        told = await here.post(f"{QUEUE}/workers/ant/offline", {}, user="operator")
        (worker,) = told["workers"]
        assert (worker["worker"], worker["queues"]) == ("ant", ["shop/mails"])
        status, said = await here.call("POST", f"{QUEUE}/workers/bee/offline")
        assert (status, said["error"]["code"]) == (404, "unknown-worker")
        assert (await here.call("POST", f"{QUEUE}/workers/a%0Ab/offline"))[0] == 400


@in_a_loop
async def test_queues_are_listed_as_far_as_one_may_see_them(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        for queue, count in (("mails", 3), ("bills", 1), ("empty", 1), ("images", 2)):
            await here.add(client, queue, [[number] for number in range(count)])
        await here.add(client, "secrets", [[1]], namespace="other")
        for queue in ("mails", "images"):
            await here.attend(client, queue)
        await here.serve_dead(client, "images", [[1]], FAILURE)
        (task,) = await here.take(client, "empty")
        await here.finish(client, "empty", task, 1)
        await here.post("/v1/shop/queues/bills/pause", {"reason": "why"})

        async def names(user: str = "reader", **params: Any) -> list[str]:  # noqa: ANN401
            found = await here.get("/v1/queues", user=user, **params)
            assert found["unreachable"] == []
            assert found["namespaces"] == (
                {"shop": 4} if user == "reader" else {"other": 1, "shop": 4}
            )
            return [one["queue"] for one in found["queues"]]

        assert await names() == ["bills", "empty", "images", "mails"]
        assert await names("boss") == ["secrets", "bills", "empty", "images", "mails"]
        assert await names("boss", namespace="other") == ["secrets"]
        assert await names(match="AI") == ["mails"]
        assert (await names(sort="backlog"))[:2] == ["mails", "images"]
        assert await names(only="paused") == ["bills"]
        assert await names(only="unserved") == ["bills"]
        rows = {one["queue"]: one for one in (await here.get("/v1/queues"))["queues"]}
        mails, bills = rows["mails"], rows["bills"]
        assert (mails["backlog"], mails["workers"], mails["partitions"]) == (3, 1, 1)
        assert mails["paused"] is None
        assert bills["paused"]["reason"] == "why"
        assert rows["images"]["died"] == 1
        seen, cursor = [], None
        while True:
            more: dict[str, str] = {"cursor": cursor} if cursor else {}
            page = await here.get("/v1/queues", user="reader", most="3", **more)
            seen += [one["queue"] for one in page["queues"]]
            cursor = page["cursor"]
            if cursor is None:
                break
            last = cursor
        assert seen == ["bills", "empty", "images", "mails"]
        for path, user, code in (
            ("/v1/queues?namespace=other", "reader", 403),
            ("/v1/queues", "customer", 403),
            ("/v1/queues?sort=size", "boss", 400),
            ("/v1/queues?only=big", "boss", 400),
            ("/v1/queues?cursor=garbage", "boss", 400),
            (f"/v1/queues?sort=backlog&cursor={last}", "boss", 400),
            (f"/v1/workers?cursor={last}", "boss", 400),
        ):
            assert (await here.call("GET", path, user=user))[0] == code, path


@in_a_loop
async def test_workers_are_listed_with_what_they_run(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        queues = [here.node.queue_of(shard, "shop") for shard in (0, 1)]
        for queue in queues:
            (number,) = await here.add(client, queue, [[1]])
            await here.attend(client, queue)
            assert [task.sequence for task in await here.take(client, queue)] == [number]
        await here.add(client, "secrets", [[1]], namespace="other")
        await here.attend(client, "secrets", namespace="other")
        found = await here.get("/v1/workers", user="reader")
        assert (found["cursor"], found["unreachable"]) == (None, [])
        (worker,) = found["workers"]
        assert (worker["worker"], worker["slots"], worker["online"]) == ("ant", 8, True)
        assert worker["queues"] == sorted(f"shop/{queue}" for queue in queues)
        assert worker["queue_count"] == 2
        running = {one["queue"]: one for one in worker["running"]}
        assert running.keys() == set(worker["queues"])
        assert all(one["task"].startswith("0/") for one in running.values())
        assert all(one["attempt"] == 1 and one["since"] > 1e9 for one in running.values())
        (worker,) = (await here.get("/v1/workers"))["workers"]
        assert worker["queue_count"] == 3
        (worker,) = (await here.get("/v1/workers", namespace="other"))["workers"]
        assert (worker["queues"], worker["running"]) == (["other/secrets"], [])
        for params, count in (
            ({"namespace": "shop", "queue": queues[0]}, 1),
            ({"namespace": "shop", "queue": "others"}, 0),
            ({"match": "AN"}, 1),
            ({"match": "bee"}, 0),
        ):
            assert len((await here.get("/v1/workers", **params))["workers"]) == count
        for path, user, code in (
            ("/v1/workers?namespace=other", "reader", 403),
            ("/v1/workers", "customer", 403),
            ("/v1/workers?queue=mails", "boss", 400),
            ("/v1/workers?cursor=garbage", "boss", 400),
        ):
            assert (await here.call("GET", path, user=user))[0] == code, path


@in_a_loop
async def test_the_last_hour_is_told_as_far_as_one_may_see_it(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.add(client, "mails", [[1], [2]])
        await here.add(client, "mails", [[1]], namespace="other")
        await here.sample()
        for user, params, added in (
            ("boss", {}, 3),
            ("boss", {"namespace": "other"}, 1),
            ("reader", {}, 2),
            ("reader", {"namespace": "shop", "queue": "mails"}, 2),
            ("stranger", {}, 1),
        ):
            found = await here.get("/v1/series", user=user, seconds=60, **params)
            assert (found["step_seconds"], found["unreachable"]) == (10, [])
            assert found["from"] % 10 == 0
            assert {len(one) for one in found["points"].values()} == {6}
            backlog = [one for one in found["points"]["backlog"] if one is not None]
            assert backlog[-1:] == [added], (user, params)
        for path, user, code in (
            ("/v1/series?namespace=other", "reader", 403),
            ("/v1/series", "customer", 403),
            ("/v1/series?queue=mails", "boss", 400),
            ("/v1/series?seconds=0", "boss", 400),
        ):
            assert (await here.call("GET", path, user=user))[0] == code, path


@in_a_loop
async def test_a_page_that_is_opened_late_has_the_past_of_workers_and_shards(
    tmp_path: Path,
) -> None:
    async with admin_stage(tmp_path) as here:
        await here.sample()
        client = await here.client()
        await here.add(client, "mails", [[1]])
        await here.attend(client, "mails")
        await here.sample()
        (worker,) = (await here.get("/v1/workers"))["workers"]
        path = f"/v1/workers/{worker['session']}/series"
        for user in ("boss", "reader"):
            found = await here.get(path, user=user, seconds=60)
            assert (found["step_seconds"], found["unreachable"]) == (10, [])
            assert {name: one[-1] for name, one in found["points"].items()} == {
                "limit": None,
                "busy": 2,
                "slots": 8,
            }
            assert found["points"]["busy"][:-1] == [None] * 5
        # What serves other namespaces is not told of, and a session that is unknown has no past.
        assert (await here.get(path, user="stranger"))["points"] == {}
        assert (await here.get(f"/v1/workers/{'0' * 32}/series"))["points"] == {}
        found = await here.get("/v1/nodes/series", seconds=60)
        assert [one["shard"] for one in found["shards"]] == [0, 1]
        assert {len(one) for one in found["shards"][0]["points"].values()} == {6}
        commits = sum(one["points"]["commits"][-1] for one in found["shards"])
        (wrote,) = [one["points"] for one in found["shards"] if one["points"]["commit_rows"][-1]]
        assert commits == wrote["commits"][-1] >= 1
        assert 0 < wrote["commit_p50"][-1] <= wrote["commit_p99"][-1]
        for path_, user, code in (
            (path, "customer", 403),
            ("/v1/workers/ant/series", "boss", 400),
            (f"{path}?seconds=0", "boss", 400),
            ("/v1/nodes/series", "reader", 403),
            ("/v1/ring", "reader", 403),
        ):
            assert (await here.call("GET", path_, user=user))[0] == code, path_
        # A node that belongs to no cluster has no ring.
        ring = await here.get("/v1/ring", namespace="shop", queue="mails")
        assert (ring["cluster"], ring["members"], ring["partitions"]) == (None, [], [])


@in_a_loop
async def test_nodes_are_told_with_their_shards(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        found = await here.get("/v1/nodes")
        assert (found["cluster"], found["unreachable"]) == (None, [])
        (node,) = found["nodes"]
        assert (node["state"], node["shards"]) == ("active", 2)
        assert node["node"] == str(here.node.identity)
        assert [one["shard"] for one in found["shards"]] == [0, 1]
        here.node.kill(1)
        while len(found["shards"]) == 2:
            found = await here.get("/v1/nodes")
        assert [one["shard"] for one in found["shards"]] == [0]
        (away,) = found["unreachable"]
        assert away["shard"] == 1
        assert away["error"]["code"]
        await here.node.start_again(1)


# Formats and records


@in_a_loop
async def test_msgpack_is_spoken_as_well(tmp_path: Path) -> None:
    async with admin_stage(tmp_path, users={}) as here:
        client = await here.client()
        await here.add(client, "mails", [[1]])
        caller = Caller(*await asyncio.open_connection("127.0.0.1", here.port))
        caller.send(get(f"{QUEUE}/tasks?reveal=true", "Accept: application/msgpack"))
        answer = await caller.answer()
        caller.close()
        (row,) = msgpack.decode(answer.body)["tasks"]
        assert row["withheld"] == "unknown", "no handler has said what it hides"
        assert set(row) == {one.name for one in structs.fields(TaskRow)}


@in_a_loop
async def test_changes_are_in_the_audit_logs_and_values_are_not(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails")
        (dead,) = await here.serve_dead(client, "mails", [[1, CARD]], FAILURE)
        await here.get(f"{QUEUE}/tasks", user="reader")
        await here.get(f"{QUEUE}/tasks/0/{dead}/history", user="auditor", reveal="true")
        wanted = {"argument": {"name": "order", "value": CARD}}
        actions: list[tuple[str, Any]] = [
            ("pause", {"reason": "why"}),
            ("tasks/actions", {"action": "retry", "filter": wanted, "dry_run": True}),
            ("tasks/actions", {"action": "retry", "filter": wanted}),
            ("tasks/actions", {"action": "retry", "ids": [f"0/{dead}"], "reason": "again"}),
            ("purge", {}),
            ("workers/ant/offline", {}),
        ]
        for path, body in actions:
            await here.post(f"{QUEUE}/{path}", body, user="boss")
        status, _ = await here.call("POST", f"{QUEUE}/pause", {}, user="reader")
        assert status == 403

        def told() -> list[dict[str, Any]]:
            found = []
            for file in sorted((tmp_path / "audit").glob("*.jsonl")):
                found += [json.loads(line) for line in file.read_text().splitlines()]
            return found

        def of(action: str) -> list[dict[str, Any]]:
            return [one for one in told() if one["action"] == action]

        await until(lambda: len(of("http pause queue")) == 2 and bool(of("workers offline")))
        for action in ("control pause", "retry tasks", "workers offline"):
            (one,) = of(action)
            assert one["user"] == "boss", action
            assert one["from"].startswith("127.0.0.1:")
            assert one["target"] == "shop/mails"
        assert len(of("http act on tasks")) == 2, "a dry run changes nothing"
        assert of("http worker offline")[0]["worker"] == "ant"
        allowed, refused = of("http pause queue")
        assert (allowed["user"], allowed["allowed"], allowed["reason"]) == ("boss", True, "why")
        assert (refused["user"], refused["allowed"]) == ("reader", False)
        looks = {"list tasks", "show task", "http list tasks", "http task history", "http me"}
        assert looks.isdisjoint(one["action"] for one in told())
        assert CARD not in json.dumps(told())
