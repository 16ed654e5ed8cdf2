"""How many slots a queue wants, as an autoscaler asks the gateway and the metrics."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from maitred.metrics import families
from maitred.security.secrets import hash_secret
from tests.monitor.scraping import get, scrape
from tests.node.nodes import wait_until
from tests.tasks.shop import gated, order, unserved
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path


def scaling(stage: Stage, queue: str) -> Any:  # noqa: ANN401 - JSON
    status, body = get(f"{stage.node.ready['http']}/v1/shop/queues/{queue}/scaling")
    assert status == 200, body
    return json.loads(body)


def test_a_queue_wants_slots_for_what_it_has(tmp_path: Path) -> None:
    with Stage(tmp_path, '[queues."shop/unserved"]\npartitions = 3\n') as stage:
        stage.start_node(shards=2, gateway=True)
        node = str(stage.node.ready["monitor"])
        http = str(stage.node.ready["http"])
        assert get(f"{http}/v1/shop/queues/nothing/scaling")[0] == 404

        # Nothing has ended yet: a task counts as a second.
        tasks = [unserved.sync.enqueue(number) for number in range(240)]
        found = scaling(stage, "unserved")
        assert found["backlog"] == 240
        assert found["service_seconds"] == 0
        assert found["slots_wanted"] >= 240 / 60
        metric = scrape(node).value(families.SLOTS_WANTED.name, queue="unserved")
        assert metric >= 240 / 60

        # More workers would find nothing to do while the queue is paused.
        stage.admin("pause", "shop/unserved")
        found = scaling(stage, "unserved")
        assert (found["backlog"], found["slots_wanted"]) == (240, 0)
        assert scrape(node).value(families.SLOTS_WANTED.name, queue="unserved") == 0
        stage.admin("resume", "shop/unserved")
        assert scaling(stage, "unserved")["slots_wanted"] >= 240 / 60

        # What runs is never taken away.
        stage.start_worker("--queue", "gated", "--queue", "orders", "--slots", "8")
        gate = tmp_path / "gate"
        running = [gated.sync.enqueue(number, str(gate)) for number in range(3)]
        wait_until(lambda: scaling(stage, "gated")["running"] == 3, "three run")
        assert scaling(stage, "gated")["slots_wanted"] >= 3
        gate.touch()
        for one in running:
            one.result(timeout=60)

        # An idle queue wants nothing, sooner or later.
        order.sync.enqueue(1).result(timeout=60)
        assert scaling(stage, "orders")["service_seconds"] > 0
        wait_until(lambda: scaling(stage, "orders")["slots_wanted"] == 0, "it wants none", 120)
        for task in tasks:
            task.cancel()
        wait_until(lambda: scaling(stage, "unserved")["slots_wanted"] == 0, "it wants none", 120)


def test_the_signal_needs_the_permission_observe_in_its_namespace(tmp_path: Path) -> None:
    users = "".join(
        f'[users.{name}]\nsecret = "{hash_secret("s")}"\npermissions = {{ {given} }}\n'
        for name, given in (
            ("keda", '"shop" = ["observe"]'),
            ("other", '"desk" = ["observe"]'),
            ("producer", '"shop" = ["produce"]'),
        )
    )
    with Stage(tmp_path, users) as stage:
        stage.start_node(shards=1, gateway=True)
        url = f"{stage.node.ready['http']}/v1/shop/queues/orders/scaling"
        assert get(url)[0] == 401
        statuses = {name: _asked(url, name) for name in ("keda", "other", "producer")}
        # The queue does not exist, which only a user with the permission gets to know.
        assert statuses == {"keda": 404, "other": 403, "producer": 403}


def _asked(url: str, user: str) -> int:
    token = b64encode(f"{user}:s".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
