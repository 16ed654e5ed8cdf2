"""The shipped alerts and dashboard in a real Prometheus, at a node and workers that really fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import urllib.request
from contextlib import contextmanager, suppress
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.tasks.processes import free_port

from maitred.errors import MaitredError
from tests.cli.running import maitred, maitred_json
from tests.monitor.prometheus import (
    WINDOW,
    Prometheus,
    hastened,
    programs,
    running_prometheus,
)
from tests.monitor.scraping import get, scrape
from tests.monitor.test_processes import is_ready
from tests.node.nodes import wait_until
from tests.tasks.blocking_shop import app as blocking_app
from tests.tasks.blocking_shop import block
from tests.tasks.shop import big, fail, order, unserved
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RULES = "maitred.rules.yml"
DASHBOARD = "maitred-dashboard.json"
NPM_SECONDS = 240
PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
"""Exact versions: a new release may change the types, and this test with them."""
FAST, SLOW = "250ms", "8s"
"""How often is scraped; a node with a shard that hangs answers after some seconds."""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files as an operator gets them."""
    directory = tmp_path_factory.mktemp("shipped") / "new" / "directory"
    written = maitred_json("admin", "dashboards", "export", str(directory))["files"]
    assert {Path(one).name for one in written} == {RULES, DASHBOARD}
    return directory


def names(rules: str) -> set[str]:
    return set(re.findall(r"alert: (\w+)", rules))


def test_files_that_are_there_are_replaced_only_if_that_is_said(shipped: Path) -> None:
    (shipped / "mine").mkdir(exist_ok=True)
    mine = shipped / "mine" / DASHBOARD
    mine.write_text("mine")
    refused = maitred("admin", "dashboards", "export", str(mine.parent))
    assert refused.returncode != 0
    assert "--force" in refused.stderr
    assert mine.read_text() == "mine"
    maitred("admin", "dashboards", "export", "--force", str(mine.parent))
    assert json.loads(mine.read_text())["title"] == "maitred"
    cannot = maitred("admin", "dashboards", "export", str(mine))
    assert "cannot-write" in cannot.stderr


@pytest.mark.timeout(400)
def test_the_rules_are_valid_and_documented(shipped: Path) -> None:
    _, promtool = programs()
    command = [promtool, "check", "rules", str(shipped / RULES)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    text = (shipped / RULES).read_text()
    page = (Path(__file__).parent.parent.parent / "docs" / "monitoring.md").read_text()
    assert names(text) == set(re.findall(r"^\| `(Maitred\w+)` \|", page, re.MULTILINE))
    assert text.count("remedy:") == len(names(text))


@pytest.mark.timeout(400)
def test_the_dashboard_has_the_shape_that_grafana_declares(shipped: Path, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NO NPM HERE, so the dashboard is not compared with @grafana/schema.")
    (tmp_path / "package.json").write_text("{}")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--save-exact", *PACKAGES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=NPM_SECONDS,
    )
    if installed.returncode != 0:
        pytest.skip("NO @grafana/schema HERE, so the dashboard is not compared with it.")
    compiler = tmp_path / "node_modules" / ".bin" / "tsc"
    options = ["--noEmit", "--strict", "--skipLibCheck"]
    options += ["--moduleResolution", "bundler", "--module", "esnext"]
    text = (shipped / DASHBOARD).read_text()

    def errors(dashboard: str) -> str:
        source = tmp_path / "dashboard.ts"
        declared = 'import type { Dashboard } from "@grafana/schema";\nexport const d: Dashboard = '
        source.write_text(f"{declared}{dashboard};\n")
        command = [str(compiler), *options, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert not errors(text)
    assert "error TS" in errors(text.replace('"refresh": "10s"', '"refresh": 10'))  # it can fail


def test_panels_do_not_overlap_and_name_their_datasource(shipped: Path) -> None:
    dashboard = json.loads((shipped / DASHBOARD).read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
        assert at["x"] + at["w"] <= 24
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


class Scene:
    """A node with a gateway, two workers, and Prometheus, which scrapes all of them."""

    def __init__(self, stage: Stage, ports: dict[str, int]) -> None:
        self.stage = stage
        self.ports = ports

    @property
    def node(self) -> str:
        return f"http://127.0.0.1:{self.ports['node']}"

    def start_node(self) -> None:
        self.stage.start_node(shards=2, gateway=True)
        wait_until(lambda: is_ready(self.node), "the node is ready", 60)

    def start_worker(self, name: str, *options: str, **more: Any) -> None:  # noqa: ANN401
        self.stage.start_worker("--monitor-port", str(self.ports[name]), *options, **more)


@contextmanager
def scene(tmp_path: Path, rules: str) -> Iterator[tuple[Scene, Prometheus]]:
    programs()
    jobs = ("node", "gateway", "worker", "blocking")
    ports = {job: free_port() for job in jobs}
    settings = (
        f"[monitor]\nport = {ports['node']}\n[gateway]\nport = {ports['gateway']}\n"
        '[queues."shop/big"]\nstored_tasks = 1\n'
    )
    targets = {f"maitred-{job}": (f"127.0.0.1:{port}", FAST) for job, port in ports.items()}
    targets["maitred-node-slow"] = (f"127.0.0.1:{ports['node']}", SLOW)
    with Stage(tmp_path, settings) as stage:
        made = Scene(stage, ports)
        made.start_node()
        made.start_worker("worker", "--queue", "orders", "--queue", "failing")
        made.start_worker("blocking", app="blocking_shop:app")
        with running_prometheus(tmp_path, rules, targets) as prometheus:
            yield made, prometheus
        blocking_app.sync.close()


@pytest.mark.timeout(900)
def test_every_alert_fires_and_clears_on_a_real_fault(shipped: Path, tmp_path: Path) -> None:
    rules = (shipped / RULES).read_text()
    seen: set[str] = set()
    with scene(tmp_path, hastened(rules)) as (made, prometheus):
        stage = made.stage

        def fires(*alerts: str) -> None:
            for alert in alerts:
                prometheus.wait_for(alert)
                seen.add(alert)

        def clears(*alerts: str) -> None:
            for alert in alerts:
                prometheus.wait_until_clear(alert)

        def fires_while(fault: Callable[[], None], *alerts: str) -> None:
            """Repeat the fault until all of them have fired, none of which did before."""
            clears(*alerts)
            fired: set[str] = set()

            def has_fired() -> bool:
                fault()
                fired.update(prometheus.firing())
                return fired.issuperset(alerts)

            wait_until(has_fired, f"{alerts} fire", inf)
            seen.update(alerts)

        order.sync.enqueue(0).result(timeout=60)
        wait_until(
            lambda: not prometheus.firing() and len(prometheus.query("up == 1")) == 5,
            "all is well at the beginning",
            60,
        )

        # No worker serves the queue.
        waiting = [unserved.sync.enqueue(number) for number in range(3)]
        fires("MaitredQueueNotServed", "MaitredBacklogOld")
        for one in waiting:
            one.cancel()
        clears("MaitredQueueNotServed", "MaitredBacklogOld")

        # Every task of a queue fails.
        fail.sync.enqueue(0)  # the queue has series from now on
        wait_until(
            lambda: bool(prometheus.query('maitred_queue_dead_letters_total{queue="failing"}')),
            "its series are there",
            60,
        )

        def fail_once() -> None:
            fail.sync.enqueue(1)

        fires_while(fail_once, "MaitredDeadLetters", "MaitredTasksFailing")
        clears("MaitredDeadLetters", "MaitredTasksFailing")

        # A queue has as much as it may store.
        def add_too_much() -> None:
            with suppress(MaitredError):
                big.sync.enqueue(1, "x")

        fires_while(add_too_much, "MaitredRefusals")
        clears("MaitredRefusals")

        # The files of the store are locked, so that commits wait.
        def lock_the_store() -> None:
            with locked(stage.directory / "data"):
                adding = threading.Thread(target=add_one, daemon=True)
                adding.start()
                fires("MaitredStoreFailing")
            adding.join(60)
            clears("MaitredStoreFailing")

        fires_while(lock_the_store, "MaitredStoreSlow")
        clears("MaitredStoreSlow")

        # A shard hangs, and then goes on.
        hung = stage.node.shards[1].pid
        os.kill(hung, signal.SIGSTOP)
        try:
            fires("MaitredProcessDown", "MaitredNodeNotReady")
        finally:
            os.kill(hung, signal.SIGCONT)
        fires("MaitredLoopLag")
        clears("MaitredProcessDown", "MaitredNodeNotReady", "MaitredLoopLag")

        # A shard dies.
        os.kill(stage.node.shards[0].pid, signal.SIGKILL)
        fires("MaitredProcessRestarts")
        clears("MaitredProcessRestarts")

        # A handler blocks its worker.
        blocking_app.node = stage.url
        task = block.sync.enqueue(str(tmp_path / "gate"))
        fires("MaitredWorkerBlocked")
        (tmp_path / "gate").touch()
        task.result(timeout=60)
        clears("MaitredWorkerBlocked")

        # The node is killed, and comes back.
        stage.kill_node()
        fires("MaitredTargetDown", "MaitredWorkerNotReady")
        made.start_node()
        clears("MaitredTargetDown", "MaitredWorkerNotReady")
    assert seen >= names(rules)


@pytest.mark.timeout(600)
def test_every_expression_of_the_dashboard_has_numbers(shipped: Path, tmp_path: Path) -> None:
    """0 is a number; NaN, as of a quotient that is always 0 / 0, is none."""
    dashboard = json.loads((shipped / DASHBOARD).read_text())
    expressions = [
        target["expr"]
        .replace("$__rate_interval", WINDOW)
        .replace('"$namespace"', '".*"')
        .replace('"$queue"', '".*"')
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(expressions) > 40
    assert not [one for one in expressions if "$" in one]
    with scene(tmp_path, "") as (made, prometheus):
        gateway = f"http://127.0.0.1:{made.ports['gateway']}"
        request = urllib.request.Request(  # noqa: S310 - our own
            f"{gateway}/v1/shop/queues/orders/query",
            data=b"[1]",
            headers={"Content-Type": "application/json"},
        )
        without = expressions.copy()

        def have_numbers() -> bool:
            """Use everything, because most expressions are about the last seconds, and look."""
            assert get(f"{gateway}/v1/shop/queues/nothing")[0] == 404
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                assert answer.status == 200
            order.sync.enqueue(1).result(timeout=60)
            unserved.sync.enqueue(1).cancel()
            without[:] = [one for one in without if not any(map(isfinite, prometheus.values(one)))]
            return not without

        try:
            wait_until(have_numbers, "every expression has a number", inf)
        finally:
            print("without a number:", *without, sep="\n")
        assert scrape(made.node).value("maitred_queue_tasks_added_total") > 0
        for variable in dashboard["templating"]["list"][1:]:
            metric, label = re.findall(r"\w+", variable["query"])[1:]
            assert all(label in one["metric"] for one in prometheus.query(metric))


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """Have the locks of all files of the store, as a program that should not be there."""
    held = [sqlite3.connect(path, isolation_level=None) for path in data.glob("tasks-*.db")]
    assert held
    try:
        for one in held:
            one.execute("BEGIN IMMEDIATE")
        yield
    finally:
        for one in held:
            one.close()


def add_one() -> None:
    with suppress(MaitredError):
        unserved.sync.enqueue(9)
