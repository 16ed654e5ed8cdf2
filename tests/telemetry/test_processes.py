"""Real nodes, gateways and workers export their traces and metrics to a receiver."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from maitred import App
from maitred.metrics import families
from maitred.telemetry.start import process_tracing
from tests.monitor.scraping import get, parsed
from tests.monitor.test_processes import pages
from tests.node.in_process import RecordedLog
from tests.node.nodes import running_node
from tests.tasks import shop
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.monitor.scraping import Scraped
    from tests.telemetry.receiver import Received, ReceivedPoint

KINDS = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}
SECONDS = 60


def test_a_task_is_traced_over_three_processes_and_all_export_their_metrics(
    tmp_path: Path, marked: Received
) -> None:
    """The node and its gateway export by HTTP, the worker by gRPC."""
    variables = marked.variables("http/protobuf", metrics=True, interval_seconds=0.2)
    with Stage(tmp_path) as stage:
        node = stage.start_node(shards=1, gateway=True, interpreters=True, **variables)
        endpoint = marked.endpoint("grpc")
        worker = stage.start_worker(
            *("--queue", "orders", "--name", "w"),
            *("--traces", "--otlp-metrics", "--otlp-endpoint", endpoint),
        )
        asyncio.run(_order(stage, marked))
        spans = marked.wait_for_spans("send shop/orders", "wait shop/orders", "process shop/orders")
        marked.wait_for_points(_is_counted, "the shard has counted its span")
        texts = {
            "maitred-node": get(f"{node.ready['monitor']}/metrics")[1],
            "maitred-gateway": get(f"{node.ready['http']}/metrics")[1],
            "maitred-worker": get(f"{pages(worker)}/metrics")[1],
        }
        assert worker.stop() == 0
        assert stage.stop_node() == 0
    send, wait, process = spans.values()
    assert [one.parent for one in (send, wait, process)] == ["", send.id, wait.id]
    assert {one.trace for one in spans.values()} == {send.trace}
    services = [one.resource["service.name"] for one in spans.values()]
    assert services == ["maitred-test", "maitred-node", "maitred-worker"]
    assert wait.resource["maitred.node"] == node.ready["node"]
    assert wait.resource["maitred.shard"] == 0
    assert process.resource["maitred.worker"] == "w"
    assert (wait.protocol, process.protocol) == ("http/protobuf", "grpc")
    for service, text in texts.items():
        points = [one for one in marked.points() if one.resource["service.name"] == service]
        _compare(parsed(text), points)
    last = [
        one for one in marked.points(families.ADDED.name) if one.attributes["queue"] == "orders"
    ][-1]
    assert last.value == 1
    assert last.is_monotonic
    assert last.is_cumulative
    runs = marked.points(families.WORKER_RUN_SECONDS.name)[-1]
    assert (runs.unit, runs.count, sum(runs.buckets)) == ("s", 1, 1)
    assert len(runs.buckets) == len(runs.bounds) + 1
    assert runs.extremes == (None, None)


async def _order(stage: Stage, marked: Received) -> None:
    tracing = process_tracing(marked.settings(), RecordedLog(), service="maitred-test")
    app = App("shop", node=stage.url, tracing=tracing)

    @app.handler("orders")
    async def order(number: int) -> int:
        return number

    async with app:
        task = await order.enqueue(7)
        assert await task.result(timeout=SECONDS) == 7
    assert tracing is not None
    await tracing.close()


def _is_counted(points: list[ReceivedPoint]) -> bool:
    return any(
        one.value == 1 and one.attributes["process"] == "shard-0"
        for one in points
        if one.name == families.SPANS_EXPORTED.name
    )


def _compare(page: Scraped, points: list[ReceivedPoint]) -> None:
    """Everything that the page has was exported: names, kinds and labels."""
    received = {one.name: one.kind for one in points}
    with_samples = {name.removesuffix("_count") for name, _ in page.samples} & page.families()
    expected = {name: KINDS[kind] for name, kind in page.kinds.items() if name in with_samples}
    assert expected.items() <= received.items()
    series = {(one.name, tuple(sorted(one.attributes.items()))) for one in points}
    for name, labels in page.samples:
        if page.kinds.get(name) in {"counter", "gauge"}:
            assert (name, labels) in series


def test_a_worker_exports_what_is_left_with_the_provider_of_its_app(
    tmp_path: Path, marked: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", marked.endpoint("grpc"))
    with Stage(tmp_path) as stage:
        stage.start_node(shards=1)
        worker = stage.start_worker("--traces", app="traced_shop:app")
        task = shop.order.sync.enqueue(7)
        assert task.result(timeout=SECONDS) == 7
        assert worker.stop() == 0
    assert marked.wait_for_spans("process shop/orders")


def test_a_node_stops_gracefully_though_the_receiver_is_silent() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        variables = {
            "MAITRED_TELEMETRY__TRACES": "true",
            "MAITRED_TELEMETRY__METRICS": "true",
            "MAITRED_TELEMETRY__INTERVAL_SECONDS": "0.05",
            "MAITRED_TELEMETRY__ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        with running_node(shards=1, environment=variables, interpreters=True) as node:
            assert node.stop() == 0
            assert node.events("the last metrics were not exported in time")


def test_bad_variables_and_options_of_a_worker_are_refused(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.start_node(shards=1)
        worker = stage.start_worker("--otlp-endpoint", "localhost:4317", wait=False)
        assert worker.wait() == 2
        worker.errors.wait_for("telemetry.endpoint is 'localhost:4317'")
