"""The gateway as a process: beside the shards of a node, and on its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import trustme

from maitred.config import load
from maitred.gateway.gateway import TOGETHER, shared_querying
from maitred.security.secrets import hash_secret
from tests.cli.running import MAITRED, maitred, maitred_json, running
from tests.node import nodes
from tests.node.nodes import is_alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.forks import Forked
    from tests.node.nodes import RunningNode

running_node = partial(nodes.running_node, gateway=True)

ROOT = Path(__file__).parents[2]
JSON = {"Content-Type": "application/json"}


def call(
    base: str,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, Any, dict[str, str]]:
    """Status, what the body says, headers."""
    place = urlsplit(base)
    assert place.hostname is not None
    connection: http.client.HTTPConnection
    if place.scheme == "https":
        connection = http.client.HTTPSConnection(
            place.hostname, place.port, timeout=60, context=context
        )
    else:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {**JSON, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        kind = answer.headers.get_content_type()
        lines = kind == "application/x-ndjson"
        said = [json.loads(one) for one in text.splitlines()] if lines else json.loads(text)
        return answer.status, said, {k.lower(): v for k, v in answer.headers.items()}
    finally:
        connection.close()


@contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of `handlers.py`."""
    with subprocess.Popen(
        [str(MAITRED), "worker", "tests.gateway.handlers:app", "--url", url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def http_of(node: RunningNode) -> str:
    return str(node.ready["http"])


def served(base: str, queue: str = "echo") -> None:
    """Wait until a worker serves it."""
    path = f"/v1/default/queues/{queue}/query"
    wait_until(lambda: call(base, "POST", path, [])[0] in {200, 400}, "a worker serves")


def test_queries_and_tasks_through_a_whole_node() -> None:
    with running_node(shards=2, interpreters=True) as node, worker(node.url):
        base = http_of(node)
        served(base)
        queue = "/v1/default/queues"
        status, said, headers = call(base, "POST", f"{queue}/echo/query", ["hello"])
        assert (status, said) == (200, "hello")
        assert headers["maitred-worker"]
        assert call(base, "POST", f"{queue}/echo/query", {"value": [1]})[1] == [1]
        assert call(base, "POST", f"{queue}/count/query", [3])[1] == [0, 1, 2]
        status, said, _ = call(base, "POST", f"{queue}/fail/query")
        assert (status, said["error"]["code"], said["error"]["kind"]) == (
            500,
            "query-failed",
            "ValueError",
        )
        status, said, _ = call(base, "POST", f"{queue}/echo/query", {"wrong": 1})
        assert (status, said["error"]["code"]) == (400, "invalid-arguments")
        status, said, _ = call(base, "POST", f"{queue}/echoo/query", [1])
        assert (status, said["error"]["code"]) == (404, "unknown-queue")
        assert "echo" in said["error"]["remedy"]
        late = {"Maitred-Timeout": "0.2"}
        assert call(base, "POST", f"{queue}/sleep/query", [30], late)[0] == 504

        status, said, headers = call(base, "POST", f"{queue}/echo/tasks?retention=600", ["later"])
        assert (status, headers["location"]) == (202, said["location"])
        status, said, _ = call(base, "GET", f"{headers['location']}?wait=8")
        assert (status, said) == (200, "later")
        status, _, headers = call(base, "POST", f"{queue}/echo/tasks?delay=600", ["much later"])
        assert status == 202
        assert call(base, "GET", headers["location"])[:2] == (202, {"status": "pending"})
        assert call(base, "DELETE", headers["location"])[1] == {"state": "cancelled"}
        assert call(base, "GET", headers["location"])[0] == 409
        _, _, headers = call(base, "POST", f"{queue}/echo/tasks?delay=600&retention=600", ["never"])
        purged = maitred_json("admin", "queue", "purge", "default/echo", "--yes", "--url", node.url)
        assert purged["tasks"] == {"waiting": 0, "delayed": 1}
        status, said, _ = call(base, "GET", headers["location"])
        assert (status, said["error"]["code"]) == (409, "task-purged")
        assert call(base, "DELETE", headers["location"])[1] == {"state": "cancelled"}
        _, _, headers = call(base, "POST", f"{queue}/fail/tasks?retries=0", [])
        status, said, _ = call(base, "GET", f"{headers['location']}?wait=8")
        assert (status, said["error"]["code"]) == (500, "task-failed")
        status, said, _ = call(base, "GET", f"{queue}/echo/tasks/0/77")
        assert (status, said["error"]["code"]) == (404, "unknown-task")
        _, _, headers = call(base, "POST", f"{queue}/echo/tasks?retention=0", ["unkept"])
        wait_until(
            lambda: call(base, "GET", headers["location"])[0] == 410, "it is over and forgotten"
        )
        status, said, _ = call(base, "DELETE", headers["location"])
        assert (status, said["error"]["code"]) == (410, "task-forgotten")

        # What no handler takes, and where there is none.
        for arguments in ({"wrong": 1}, ["two", "many"]):
            status, said, _ = call(base, "POST", f"{queue}/echo/tasks", arguments)
            assert (status, said["error"]["code"]) == (422, "no-handler-fits")
        status, said, _ = call(base, "POST", f"{queue}/sleep/tasks", ["long"])
        assert (status, said["error"]["code"]) == (422, "no-handler-fits")
        assert "The argument 'seconds' of sleep does not fit" in said["error"]["message"]
        typo = f"{queue}/slep/tasks"
        status, said, _ = call(base, "POST", f"{typo}?require_worker=1", [1])
        assert (status, said["error"]["code"]) == (404, "unknown-queue")
        assert "'sleep'" in said["error"]["remedy"]
        assert call(base, "POST", typo, ["anything"])[0] == 202
        required = {"Maitred-Require-Worker": "1"}
        status, said, _ = call(base, "POST", typo, [1], required)
        assert (status, said["error"]["code"]) == (503, "no-worker")
        assert call(base, "GET", f"{queue}/slep")[1]["served_seconds_ago"] is None
        assert call(base, "POST", f"{queue}/echo/tasks", ["served"], required)[0] == 202

        status, said, _ = call(base, "GET", f"{queue}/echo")
        assert (status, said["queue"], said["served_seconds_ago"]) == (200, "echo", 0.0)
        rows = call(base, "GET", "/v1/default/queries?status=failed")[1]["queries"]
        assert {row["queue"] for row in rows} >= {"fail"}
        assert call(base, "GET", "/ready")[1] == {"status": "ready"}
        assert node.stop() == 0


def test_a_gateway_that_dies_is_started_again_at_the_same_port() -> None:
    with running_node(shards=1, interpreters=True) as node:
        base = http_of(node)
        pid = node.ready["gateway_pid"]
        os.kill(pid, signal.SIGKILL)
        (line,) = node.errors.wait_for("gateway ready again")
        assert json.loads(line)["restarts"] == 1
        assert call(base, "GET", "/health")[0] == 200
        wait_until(lambda: call(base, "GET", "/ready")[0] == 200, "it finds its node")
        assert node.stop() == 0


def test_a_gateway_that_keeps_dying_does_not_stop_the_node() -> None:
    fast = (
        "restarts.first_seconds=0.01",
        "restarts.longest_seconds=0.1",
        "restarts.give_up_after=2",
    )
    settings = [part for one in fast for part in ("--set", one)]
    with running_node(*settings, shards=1) as node:
        os.kill(node.ready["gateway_pid"], signal.SIGKILL)
        (line,) = node.errors.wait_for("gateway ready again")
        os.kill(json.loads(line)["pid"], signal.SIGKILL)
        node.errors.wait_for("gateway keeps dying; the node continues")
        node.errors.wait_for("gateway ready again", count=2)
        assert call(http_of(node), "GET", "/health")[0] == 200
        assert node.stop() == 0


def test_stopping_a_node_finishes_what_came_by_http() -> None:
    with running_node(shards=1) as node, worker(node.url):
        base = http_of(node)
        served(base)
        found: list[tuple[int, Any]] = []

        def ask() -> None:
            found.append(call(base, "POST", "/v1/default/queues/sleep/query", [1.0])[:2])

        asking = threading.Thread(target=ask)
        asking.start()
        path = "/v1/default/queries?queue=sleep&status=running"
        wait_until(lambda: bool(call(base, "GET", path)[1]["queries"]), "it runs")
        assert node.stop() == 0
        asking.join(30)
        assert found == [(200, "slept")]
        assert not is_alive(node.ready["gateway_pid"])


def test_a_supervisor_that_is_killed_takes_its_gateway_along() -> None:
    with running_node(shards=1) as node:
        node.send(signal.SIGKILL)
        wait_until(lambda: not is_alive(node.ready["gateway_pid"]), "the gateway ends")


def test_a_port_in_use_stops_the_start_and_says_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with running_node("--set", f"gateway.port={port}", shards=1, wait=False) as node:
            assert node.wait() == 1
            said = str(node.errors)
            assert f"Port {port} on 127.0.0.1, for the HTTP API, is in use" in said
            assert "--set gateway.port=" in said


def test_without_a_gateway() -> None:
    with running_node("--set", "gateway.enabled=false", shards=1) as node:
        assert node.ready["http"] is None
        assert node.stop() == 0


def test_a_hook_that_cannot_be_imported_stops_the_start() -> None:
    with running_node("--set", "gateway.hook=no_such:thing", shards=1, wait=False) as node:
        assert node.wait() == 2
        assert "gateway.hook 'no_such:thing' cannot be imported" in str(node.errors)


def test_a_hook_changes_queries_and_refuses_them(tmp_path: Path) -> None:
    (tmp_path / "looking.py").write_text(
        "from maitred.errors import PermissionDenied\n"
        "def look(ask):\n"
        "    if b'drop' in ask.payload:\n"
        "        raise PermissionDenied('Nobody drops anything.')\n"
        "    if b'boom' in ask.payload:\n"
        "        raise ZeroDivisionError\n"
        "    ask.payload = ask.payload.replace(b'red', b'RED')\n"
        "    return ask\n"
    )
    with (
        running_node(
            *("--set", "gateway.hook=looking:look"),
            shards=1,
            environment={"PYTHONPATH": str(tmp_path)},
            interpreters=True,
        ) as node,
        worker(node.url),
    ):
        base, path = http_of(node), "/v1/default/queues/echo/query"
        served(base)
        assert call(base, "POST", path, ["red"])[1] == "RED"
        status, said, _ = call(base, "POST", path, ["drop it"])
        assert (status, said["error"]["message"]) == (403, "Nobody drops anything.")
        status, said, _ = call(base, "POST", path, ["boom"])
        assert (status, said["error"]["code"]) == (500, "internal-error")


def test_a_caller_that_leaves_stops_the_handler() -> None:
    with running_node(shards=1) as node, worker(node.url):
        base = http_of(node)
        served(base)
        place = urlsplit(base)
        connection = http.client.HTTPConnection(str(place.hostname), place.port)
        connection.request("POST", "/v1/default/queues/sleep/query", "[600]", JSON)
        table = "/v1/default/queries?queue=sleep"
        wait_until(
            lambda: (
                [row["status"] for row in call(base, "GET", table)[1]["queries"]] == ["running"]
            ),
            "it runs",
        )
        connection.close()
        wait_until(
            lambda: (
                [row["status"] for row in call(base, "GET", table)[1]["queries"]] == ["cancelled"]
            ),
            "it is cancelled",
        )


def test_the_users_of_the_node_apply() -> None:
    users = {
        "alice": {"secret": hash_secret("open sesame"), "permissions": {"*": ["admin"]}},
        "bob": {
            "secret": hash_secret("b"),
            "permissions": {"default": ["query"]},
            "queries": {"queues": ["default/echo"]},
        },
    }
    environment = {"MAITRED_USERS": json.dumps(users)}
    with running_node(shards=1, environment=environment) as node:
        url = node.url.replace("://", "://alice:open%20sesame@")
        base = http_of(node)
        alice = {"Authorization": "Bearer alice:open sesame"}
        bob = {"Authorization": "Bearer bob:b"}
        with worker(url):
            path = "/v1/default/queues/echo/query"
            wait_until(lambda: call(base, "POST", path, [], alice)[0] == 200, "a worker serves")
            assert call(base, "POST", path, ["hi"])[0] == 401
            assert call(base, "POST", path, ["hi"], bob)[1] == "hi"
            assert call(base, "POST", "/v1/default/queues/fail/query", [], bob)[0] == 403
            rows = call(base, "GET", "/v1/default/queries", None, bob)[1]["queries"]
            assert {row["user"] for row in rows} == {"bob"}
        assert "sesame" not in str(node.errors)


def test_tls_at_both_ends(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    file = tmp_path / "maitred.toml"
    file.write_text('[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n')
    with running_node("--config", str(file), shards=1) as node:
        base = http_of(node)
        assert base.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        assert call(base, "GET", "/ready", context=context)[0] == 200


# On its own


@contextmanager
def standing_alone(*arguments: str) -> Iterator[tuple[str, Forked]]:
    with running("gateway", "--json", "--port", "0", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield str(json.loads(line)["http"]), process


def test_a_gateway_on_its_own() -> None:
    with (
        running_node("--set", "gateway.enabled=false", shards=1) as node,
        worker(node.url),
        standing_alone("--url", node.url) as (base, process),
    ):
        served(base)
        assert call(base, "POST", "/v1/default/queues/echo/query", ["hi"])[1] == "hi"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_it_waits_for_its_node_and_is_announced_when_it_can_serve() -> None:
    """Until then it listens, and says why it cannot serve."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"maitred://127.0.0.1:{nobody.getsockname()[1]}"
        with running("gateway", "--json", "--port", "0", "--url", url) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            entry: dict[str, Any] = {}
            while entry.get("event") != "gateway listens":
                entry = json.loads(process.stderr.readline())
            base = entry["address"]
            assert call(base, "GET", "/health")[0] == 200
            status, said, headers = call(base, "GET", "/ready")
            assert (status, said["error"]["code"]) == (503, "unavailable")
            assert headers["retry-after"]
            assert call(base, "POST", "/v1/default/queues/echo/query", [])[0] == 503
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "", "it was not announced"
            assert process.wait(30) == 0


def test_a_second_signal_forces_it() -> None:
    with (
        running_node("--set", "gateway.enabled=false", shards=1) as node,
        worker(node.url),
        standing_alone("--url", node.url, "--set", "drain_seconds=60") as (base, process),
    ):
        served(base)
        place = urlsplit(base)
        connection = http.client.HTTPConnection(str(place.hostname), place.port)
        connection.request("POST", "/v1/default/queues/sleep/query", "[60]", JSON)
        path = "/v1/default/queries?queue=sleep&status=running"
        wait_until(lambda: bool(call(base, "GET", path)[1]["queries"]), "it runs")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "stopping; finishing" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--port", "x"), 2, "gateway.port is 'x'"),
        (("--host", "0.0.0.0"), 2, "public_without_auth"),  # noqa: S104 - refused
        (("--url", "http://x"), 2, "maitred://"),
        (("--host", "192.0.2.1", "--set", "public_without_auth=true"), 1, "cannot-start"),
        (("--set", "gateway.hook=json"), 2, "not MODULE:NAME"),
        (("--set", "gateway.hook=json:nothing"), 2, "cannot be imported"),
        (("--set", "gateway.hook=json:__doc__"), 2, "is not a function"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], status: int, said: str) -> None:
    refused = maitred("gateway", "--port", "0", *arguments)
    assert refused.returncode == status, refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_who_is_not_let_in_ends() -> None:
    users = {"alice": {"secret": hash_secret("a"), "permissions": {"*": ["admin"]}}}
    with running_node(shards=1, environment={"MAITRED_USERS": json.dumps(users)}) as node:
        refused = maitred("gateway", "--port", "0", "--url", node.url.replace("://", "://x:y@"))
        assert refused.returncode == 1
        assert "[unauthenticated]" in refused.stderr


# The document


def schemathesis(
    base: str, directory: Path, *arguments: str, more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it with our configuration, and some more."""
    configuration = directory / "schemathesis.toml"
    configuration.write_text((ROOT / "schemathesis.toml").read_text() + more)
    program = Path(sys.prefix) / "schemathesis" / "bin" / "schemathesis"
    if not program.exists():
        pytest.skip("NO schemathesis HERE: the OpenAPI document was not tried")
    return subprocess.run(
        [
            str(program),
            "--config-file",
            str(configuration),
            "run",
            f"{base}/openapi.json",
            "--seed",
            "5",
            "--no-color",
            *arguments,
        ],
        cwd=directory,  # where it leaves what it has found
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    at_once = json.dumps({"*": {"queries": {"no_worker_seconds": 0}}})
    with running_node(shards=1, environment={"MAITRED_QUEUES": at_once}) as node:
        # While no queue exists none can get ten thousand partitions, which all others would list.
        for which in ("--include-operation-id", "--exclude-operation-id"):
            chosen = ("--phases", "coverage,fuzzing", which, "resize_queue")
            done = schemathesis(http_of(node), tmp_path, "-n", "2", *chosen)
            assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        assert node.stop() == 0


@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing_where_queries_are_answered(tmp_path: Path) -> None:
    """The same with a worker: all paths are of a queue that it serves, and that nobody stops."""
    served_only = (
        # An array with two values is fine for the document, but not for this handler.
        'positive_data_acceptance.expected-statuses = ["2xx", "4xx", "503", "504"]\n'
        '[parameters]\n"path.namespace" = "default"\n"path.queue" = "echo"\n'
        '"query.delay" = 0\n'
        # Headers that nobody knows are invalid data to it there, and to nobody else.
        "[phases.coverage.checks]\nnegative_data_rejection.enabled = false\n"
    )
    with running_node(shards=1) as node, worker(node.url):
        base = http_of(node)
        served(base)
        # Those that answer in another way where tasks and queries end; none that stops the queue.
        tried = (
            *("query", "add_task", "task_result", "cancel_task", "list_queries", "cancel_query"),
            *("list_tasks", "task_history", "act_on_tasks"),
        )
        chosen = [word for one in tried for word in ("--include-operation-id", one)]
        phases = ("--phases", "coverage,fuzzing")
        done = schemathesis(base, tmp_path, "-n", "8", *phases, *chosen, more=served_only)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        rows = call(base, "GET", "/v1/default/queries?most=10000&queue=echo")[1]["queries"]
        told = [row["status"] for row in rows]
        assert "done" in told, "queries reached the worker"
        assert "lost" not in told
        (root,) = call(base, "GET", "/v1/default/queues/echo")[1]["partitions"][:1]
        assert root["finished"], "and tasks were run"
        assert call(base, "POST", "/v1/default/queues/echo/query", ["still"])[1] == "still"
        assert node.stop() == 0


def test_a_setting_of_queries_leaves_the_others_as_a_gateway_has_them() -> None:
    settings = load(None, {}, {"gateway.querying.mask": "true"}).gateway.querying
    shared = shared_querying(settings)
    assert (shared.mask, shared.together, shared.warm) == (True, TOGETHER, False)
