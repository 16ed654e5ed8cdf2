"""One hidden value through all places: a handler is given it, logs it, fails with it, retries and
dies; queries carry it as well. It is then looked for in everything that anybody can see, by a user
who may see all private data: the node has no users, so everyone may.

Exempt are the store with its backups, which hold the task itself, and what goes to the caller, who
knows the value: the result of the handler, and `print`. So is the body of a damaged row for a user
with `admin`: rows are damaged at last, and a second start of the node has users.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import sqlite3
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from maitred.errors import QueryFailed, TaskFailed
from tests.cli.running import FORKS, maitred
from tests.console.conftest import tab
from tests.node.nodes import Lines, running_node, wait_until
from tests.security.cheap import cheaply
from tests.tasks import vault
from tests.tasks.stage import ROOT
from tests.telemetry.receiver import Received, started_receiver

pytestmark = pytest.mark.timeout(400)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.telemetry.receiver import ReceivedSpan

SECRET = "Zq7Kx4-mWv9Tr2-LpN8sBd"  # noqa: S105 - it is looked for everywhere
SHOWN = "order-77-is-shown"
"""The other argument of each call: where it is missing, the secret's absence would prove little."""

SEEN = f"{SHOWN}|LookupError|Its checksum is wrong"

RUN = 6
"""Consecutive characters that count as a part of it, as `redaction.RUN_LETTERS` promises."""

QUEUES = ("payments", "receipts", "gates", "quotes", "rows")
UNSERVED = "quotas"
"""A queue of queries that no worker has ever served."""

NAMED = ("gateway", "sequence")
STATES = ("running", "waiting", "delayed", "dead", "done", "cancelled", "ended")


def traces_of(secret: str) -> list[str]:
    """Parts of the secret by which it would be recognised, as it is and in base64 and hex."""
    parts = {secret[at : at + RUN] for at in range(len(secret) - RUN + 1)}
    raw = secret.encode()
    for skipped in range(3):  # base64 depends on the place within three bytes
        parts.add(base64.b64encode(raw[skipped : skipped + 12]).decode()[:-1])
    parts.add(raw[:12].hex())
    return [one.lower() for one in parts]


class Places:
    """Everything that was seen, by the place where it was."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def add(self, place: str, text: str) -> str:
        self.seen[place] = self.seen.get(place, "") + text
        return text

    def check(self, *, shown: set[str]) -> None:
        """Fail if the secret is anywhere, or if one of the places that have to show the other
        argument, or an error, does not."""
        for place, text in self.seen.items():
            assert text, f"nothing was seen in {place}"
            lower = text.lower()
            for part in traces_of(SECRET):
                at = lower.find(part)
                assert at < 0, f"{place} has {part!r}: {text[max(0, at - 200) : at + 100]}"
        for place in shown:
            assert re.search(SEEN, self.seen[place]), f"{place} shows nothing"


def test_a_hidden_value_is_found_nowhere(browser: Browser, tmp_path: Path) -> None:
    places = Places()
    settings = tmp_path / "node.toml"
    audit, data = tmp_path / "audit", tmp_path / "data"
    settings.write_text(f'[audit]\nwhen = "always"\ndirectory = "{audit}"\nqueries = "text"\n')
    options = ("--config", str(settings), "--log-level", "debug")
    with started_receiver() as receiver, ExitStack() as stack:
        received = Received(receiver)
        telemetry = received.variables("http/protobuf", metrics=True, interval_seconds=0.5)
        node = stack.enter_context(
            running_node(
                *options,
                shards=2,
                data=data,
                gateway=True,
                environment=telemetry,
                interpreters=True,
            )
        )
        vault.app.node = node.url
        environment = {**os.environ, "MAITRED_URL": node.url}
        worker = FORKS.start(
            *("worker", "tests.tasks.vault:app", "--name", "teller", "--log-format", "json"),
            *("--log-level", "debug", "--limit", "slots", "--monitor-port", "0"),
            environment=environment | telemetry,
            directory=ROOT,
            interpreters=True,
        )
        try:
            log = Lines()
            reader = threading.Thread(target=log.follow, args=(worker.stderr,), daemon=True)
            reader.start()
            monitor = json.loads(log.wait_for("worker is ready")[0])["monitor"]
            ids = call(node.ready["http"], environment, places)
            by_command(environment, ids, places)
            by_http(node.ready["http"], ids, places)
            by_python(ids, places)
            by_console(browser, node.ready["http"], ids, places)
            for name, url in (
                ("metrics of the node", f"{node.ready['monitor']}/metrics"),
                ("metrics of the gateway", f"{node.ready['http']}/metrics"),
                ("metrics of the worker", f"{monitor}/metrics"),
            ):
                places.add(name, fetch(url))
        finally:
            vault.app.sync.close()
            worker.terminate()
            worker.wait()
        reader.join()
        for stream in (worker.stdout, worker.stderr):
            if stream is not None:
                stream.close()
        assert node.stop() == 0
        places.add("log of the worker", str(log))
        places.add("log of the node and its gateway", str(node.errors))
        places.add("output of the node", str(node.output))
        # All processes have stopped, and each exports what it has before it ends.
        spans = received.wait_until(
            lambda arrived: {"process", "wait", "send", "query", "answer"} <= _operations(arrived),
            "spans of every kind",
        )
        assert {"process", "answer", "query"} <= _operations(one for one in spans if one.is_error)
        places.add("traces", str(receiver.lines))
    damaged_letters(settings, data, places)
    for file in audit.iterdir():
        places.add("audit log", file.read_text())
    for queue in ("quotes", "rows", UNSERVED):
        assert re.search(f'"target": "vault/{queue}", "query_sha256"', places.seen["audit log"])
    places.check(
        shown={
            *("log of the worker", "task list", "task show", "queue dead show", "problems"),
            *("HTTP tasks", "HTTP history", "HTTP dead-groups", "Python", "console", "query list"),
            *("HTTP error of a query", "answers to the console", "traces", "damaged show"),
        }
    )


def _operations(spans: Iterable[ReceivedSpan]) -> set[str]:
    return {one.name.partition(" ")[0] for one in spans}


def call(gateway: str, environment: dict[str, str], places: Places) -> dict[str, str]:
    """Add tasks that come to every end, and ask queries; return an id for each state."""
    sync = vault.pay.sync
    dead = sync.enqueue(SHOWN, SECRET)
    done = vault.receipt.sync.enqueue(SHOWN, SECRET)
    running = vault.gate.sync.enqueue(SHOWN, SECRET)
    delayed = vault.pay.options(delay=3_600).sync.enqueue(SHOWN, SECRET)
    cancelled = vault.pay.options(delay=3_600).sync.enqueue(SHOWN, SECRET)
    cancelled.cancel()
    with pytest.raises(TaskFailed) as failed:
        dead.result(60)
    places.add(
        "error of a task", f"{failed.value!r} {failed.value} {failed.value.remote_traceback}"
    )
    assert done.result(60) == {"order": SHOWN, "card": SECRET}, "the caller gets it"
    wait_until(lambda: running.status().state == "running", "it runs")
    paused = maitred("admin", "queue", "pause", "vault/receipts", environment=environment)
    assert paused.returncode == 0, paused.stderr
    # By HTTP, whose gateway does not know the handler: by name and by place.
    by_name = {"order": SHOWN, "card": SECRET}
    waiting = json.loads(post(f"{gateway}/v1/vault/queues/receipts/tasks", by_name))["id"]
    post(f"{gateway}/v1/vault/queues/payments/tasks", [SHOWN, SECRET])

    assert vault.quote.sync.query(SHOWN, SECRET) == f"{SHOWN} for {SECRET}"
    with pytest.raises(QueryFailed) as wrong:
        vault.quote.sync.query(f"bad {SHOWN}", SECRET)
    places.add("error of a query", f"{wrong.value!r} {wrong.value}")
    post(f"{gateway}/v1/vault/queues/quotes/query", by_name)
    bad = {**by_name, "order": f"bad {SHOWN}"}
    places.add("HTTP error of a query", post(f"{gateway}/v1/vault/queues/quotes/query", bad))
    # An error of a stream comes at its end, after the rows.
    places.add("HTTP rows", post(f"{gateway}/v1/vault/queues/rows/query", [SHOWN, SECRET]))
    # No handler has announced what it hides: a misspelt name, or workers that are still to come.
    refused = post(f"{gateway}/v1/vault/queues/{UNSERVED}/query", by_name)
    assert json.loads(refused)["error"]["code"] == "unknown-queue", refused
    places.add("HTTP error of an unserved query", refused)
    # An argument that does not fit is quoted by validators.
    misfit = {"order": 7, "card": {"number": SECRET}}
    places.add("HTTP misfit", post(f"{gateway}/v1/vault/queues/payments/tasks", misfit))
    places.add("HTTP misfit of a query", post(f"{gateway}/v1/vault/queues/quotes/query", misfit))
    return {
        "dead": dead.id,
        "done": done.id,
        "running": running.id,
        "delayed": delayed.id,
        "cancelled": cancelled.id,
        "waiting": waiting,
    }


def by_command(environment: dict[str, str], ids: dict[str, str], places: Places) -> None:
    def admin(place: str, *arguments: str) -> str:
        told = ""
        for form in ((), ("--json",)):
            done = maitred("admin", *arguments, *form, environment=environment)
            assert done.returncode in (0, 1), (arguments, done.stderr)
            told += done.stdout + done.stderr
        return places.add(place, told)

    for name in QUEUES:
        queue = f"vault/{name}"
        admin("queue describe", "queue", "describe", queue)
        for state in ("", *STATES):
            admin("task list", "task", "list", queue, *(("--state", state) if state else ()))
        # Which tasks a filter finds must not tell the value, nor parts of it.
        for value in (SECRET, SECRET[:8]):
            for parameter in ("card", "1"):
                done = maitred(
                    *("admin", "task", "list", queue, "--json"),
                    *("--argument", f"{parameter}={json.dumps(value)}"),
                    environment=environment,
                )
                assert json.loads(done.stdout or '{"tasks": []}')["tasks"] == []
        found = maitred(
            *("admin", "task", "list", queue, "--error", SECRET, "--json"), environment=environment
        )
        assert json.loads(found.stdout)["tasks"] == []
    for one in ids.values():
        admin("task show", "task", "show", one)
    number = ids["dead"].split("/", 2)[2]
    admin("queue list", "queue", "list")
    admin("problems", "problems")
    admin("queue dead list", "queue", "dead", "list", "vault/payments")
    admin("queue dead show", "queue", "dead", "show", "vault/payments", number)
    listed = admin("query list", "query", "list")
    assert f'"queue": "{UNSERVED}"' in listed
    gateways, sequences = (re.findall(rf'"{name}": "?(\w+)', listed) for name in NAMED)
    for sequence in map("/".join, zip(gateways, sequences, strict=True)):
        admin("query show", "query", "show", sequence)
    admin("worker list", "worker", "list")
    admin("task again", "task", "again", ids["done"])
    admin("task retry", "task", "retry", ids["dead"], "--reason", SHOWN)
    wait_until(
        lambda: vault.app.sync.task(ids["dead"]).status().state == "dead", "it died once more"
    )


def by_http(gateway: str, ids: dict[str, str], places: Places) -> None:
    for name in QUEUES:
        queue = f"/v1/vault/queues/{name}"
        for state in ("", *STATES):
            wanted = f"?reveal=true{'&state=' + state if state else ''}"
            places.add("HTTP tasks", fetch(f"{gateway}{queue}/tasks{wanted}"))
        argument = quote(f"card={json.dumps(SECRET)}")
        found = json.loads(fetch(f"{gateway}{queue}/tasks?reveal=true&argument={argument}"))
        assert found["tasks"] == []
        body = {
            "action": "cancel",
            "filter": {"argument": {"name": "card", "value": SECRET}},
        }
        done = post(f"{gateway}{queue}/tasks/actions", body)
        assert json.loads(done)["matched"] == 0, done
        for what in ("", "/dead-groups", "/handlers", "/scaling"):
            places.add(f"HTTP {what.strip('/') or 'queue'}", fetch(f"{gateway}{queue}{what}"))
    for one in ids.values():
        namespace, queue, place = one.split("/", 2)
        path = f"/v1/{namespace}/queues/{queue}/tasks/{place}/history?reveal=true"
        places.add("HTTP history", fetch(f"{gateway}{path}"))
    assert f'"queue":"{UNSERVED}"' in places.add(
        "HTTP queries", fetch(f"{gateway}/v1/vault/queries")
    )
    for path in ("queues", "workers", "problems", "nodes", "series", "me"):
        places.add(f"HTTP {path}", fetch(f"{gateway}/v1/{path}"))
    places.add("HTTP openapi", fetch(f"{gateway}/openapi.json"))


def by_python(ids: dict[str, str], places: Places) -> None:
    for one in ids.values():
        task = vault.app.sync.task(one)
        places.add("Python", f"{task!r} {task.status()!r} {task.status()} {task.history()!r}")
        places.add("Python", str(task.history()))
    for status in vault.app.sync.tasks():
        places.add("Python", f"{status!r} {status}")
    assert list(vault.pay.sync.tasks(argument=("card", SECRET))) == []
    assert list(vault.pay.sync.tasks(argument=("1", SECRET))) == []
    assert vault.pay.sync.change_tasks("drop", argument=("card", SECRET)).matched == 0


def by_console(browser: Browser, gateway: str, ids: dict[str, str], places: Places) -> None:
    """Look at every page, and at what the gateway answers to it."""
    with tab(browser, gateway) as one:
        page = one.page
        page.add_init_script(LISTEN)

        def look(place: str, heading: str, seen: str) -> None:
            one.go(place, heading)
            one.sees(seen)
            places.add("console", page.content())

        look("#/", "Overview", "LookupError")
        look("#/queues", "Queues", "vault/payments")
        for name in QUEUES:
            look(f"#/queues/vault/{name}", f"vault/{name}", "Live settings")
        for state in ("dead", "delayed"):
            look(f"#/tasks/vault/payments?state={state}", "vault/payments", SHOWN_IN[state])
            one.button("Show private data").click()
            one.sees("[hidden]")
            places.add("console", page.content())
        for state, id_ in ids.items():
            number = id_.split("/", 2)[2]
            look(f"#/tasks/{id_}", number, state)
            one.button("Show private data").click()
            one.sees("[hidden]")
            places.add("console", page.content())
        look("#/dead/vault/payments", "vault/payments", "LookupError")
        look("#/workers", "Workers", "teller")
        look("#/queries/vault", "Queries", UNSERVED)
        one.sees("quotes")
        places.add("answers to the console", page.evaluate("window.answers.join('')"))


def damaged_letters(settings: Path, data: Path, places: Places) -> None:
    """Damage the dead letters of the node, which has stopped, and look at them as a user who may
    see all private data and do everything but what needs `admin`."""
    users = {"auditor": '"*" = ["operate", "reveal"]', "boss": '"*" = ["admin"]'}
    with settings.open("a") as file:
        for name, granted in users.items():
            file.write(f'[users.{name}]\nsecret = "{cheaply(name)}"\npermissions = {{{granted}}}\n')
    changed = 0
    for path in data.glob("tasks-*.db"):
        with closing(sqlite3.connect(path)) as connection, connection:
            changed += connection.execute(
                "UPDATE dead SET body = CAST(substr(body, 1, length(body) - 1) || x'00' AS BLOB)"
            ).rowcount
    assert changed
    target = data.parent / "row"
    with running_node("--config", str(settings), "--log-level", "debug", data=data) as node:

        def admin(user: str, place: str, *arguments: str) -> tuple[int, str]:
            address = f"maitred://{user}:{user}@{node.host}:{node.port}"
            done = maitred(
                *("admin", "queue", *arguments), environment={**os.environ, "MAITRED_URL": address}
            )
            return done.returncode, places.add(place, done.stdout + done.stderr)

        queue = "vault/payments"
        admin("auditor", "queue dead list", "dead", "list", queue)  # sets what is damaged aside
        _, listed = admin("auditor", "damaged list", "damaged", "list", queue, "--json")
        rows = [one["id"] for one in json.loads(listed)["rows"]]
        assert rows
        export = ("damaged", "export", "--to", str(target), queue)
        for one in rows:
            for form in ((), ("--json",)):
                admin("auditor", "damaged show", "damaged", "show", queue, one, *form)
            admin("auditor", "damaged retry", "damaged", "retry", queue, one)
            status, told = admin("auditor", "damaged export", *export, one)
            assert (status != 0, "'admin'" in told, target.exists()) == (True, True, False), told
        status, _ = admin("boss", "damaged export", *export, rows[0])
        assert status == 0
        assert SECRET.encode() in target.read_bytes(), "there was something to see"
        assert node.stop() == 0
        places.add("log of the node with users", str(node.errors))


LISTEN = """
    window.answers = [];
    const asked = window.fetch;
    const listen = async (stream) => {
        const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
        for (let one = await reader.read(); !one.done; one = await reader.read()) {
            window.answers.push(one.value);
        }
    };
    window.fetch = async (...given) => {
        const answer = await asked(...given);
        if (!answer.body) return answer;
        const [mine, theirs] = answer.body.tee();
        listen(mine).catch(() => null);
        const { status, statusText, headers } = answer;
        return new Response(theirs, { status, statusText, headers });
    };
"""
"""Keeps a copy of what the gateway answers, streams included."""

SHOWN_IN = {"dead": "LookupError", "delayed": "Show private data"}
"""What shows that the data of a list have come."""


def fetch(url: str) -> str:
    """GET; the answer or the error."""
    return _sent(urllib.request.Request(url))  # noqa: S310 - a node of this machine


def post(url: str, body: object) -> str:
    """POST; the answer or the error."""
    data = json.dumps(body).encode()
    return _sent(urllib.request.Request(url, data, {"Content-Type": "application/json"}))  # noqa: S310


def _sent(request: urllib.request.Request) -> str:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - likewise
            return str(answer.read().decode())
    except urllib.error.HTTPError as problem:
        return problem.read().decode()
    except http.client.IncompleteRead as cut:  # a stream that fails midway ends like this
        return cut.partial.decode()
