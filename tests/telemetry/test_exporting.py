"""Spans and metrics over OTLP, to a receiver in another process, and to none."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk._shared_internal import BatchProcessor

from maitred.errors import CannotStart
from maitred.settings import Telemetry
from maitred.telemetry import exporting, metric_export, start
from maitred.telemetry.start import export_metrics, process_tracing
from maitred.telemetry.tracing import TaskId
from tests.node.in_process import RecordedLog, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maitred.telemetry.tracing import Tracing
    from tests.telemetry.receiver import Protocol, Received

PAGE = """# HELP shop_sold_total Things.
# TYPE shop_sold_total counter
shop_sold_total{what="tea"} 3
"""

SILENT = pytest.mark.parametrize("nowhere", ["silent"], indirect=True)
PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])


def began(settings: Telemetry, log: RecordedLog) -> Tracing:
    tracing = process_tracing(settings, log, service="maitred-test", shard=3)
    assert tracing is not None
    return tracing


@PROTOCOLS
def test_spans_arrive(marked: Received, protocol: Protocol) -> None:
    async def run() -> None:
        log = RecordedLog()
        tracing = began(marked.settings(protocol), log)
        sent = tracing.sends("shop/mails", 1)
        tracing.processes(sent.context, TaskId("shop/mails", 0, 7), 1, worker="w").end()
        sent.end(task="shop/mails/0/7")
        await tracing.close()
        assert tracing.statistics() == {"spans_exported": 2, "spans_lost": 0}
        assert log.lines == []

    asyncio.run(run())
    spans = marked.wait_for_spans("send shop/mails", "process shop/mails")
    send, process = spans["send shop/mails"], spans["process shop/mails"]
    assert process.parent == send.id
    assert process.trace == send.trace
    assert (send.kind, process.kind) == ("producer", "consumer")
    assert process.attributes["messaging.message.id"] == "shop/mails/0/7"
    assert send.resource["service.name"] == "maitred-test"
    assert send.resource["maitred.shard"] == 3
    assert send.protocol == protocol


@PROTOCOLS
def test_metrics_arrive_with_the_last_ones_at_the_end(marked: Received, protocol: Protocol) -> None:
    pages = iter(range(1, 10_000))

    async def page() -> str:
        return PAGE.replace("3", str(next(pages)))

    async def run() -> None:
        log = RecordedLog()
        settings = marked.settings(protocol, metrics=True, interval_seconds=0.01)
        exported = export_metrics(settings, log, page, service="maitred-test")
        assert exported is not None
        await until(lambda: len(marked.points()) > 1)
        await exported.stop()
        assert log.lines == []

    asyncio.run(run())
    last = next(pages) - 1
    points = marked.wait_for_points(lambda found: found[-1].value == last, "the last page")
    assert {one.name for one in points} == {"shop_sold_total"}
    assert len({one.start for one in points}) == 1
    assert points[0].start < points[0].at < points[-1].at
    assert points[0].resource["service.instance.id"]


def test_what_opentelemetrys_variables_say_goes_first(
    marked: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", marked.endpoint("http/protobuf"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")

    async def run() -> None:
        tracing = began(Telemetry(traces=True), RecordedLog())
        tracing.sends("shop/mails", 1).end()
        await tracing.close()

    asyncio.run(run())
    span = marked.wait_for_spans("send shop/mails")["send shop/mails"]
    assert span.resource["service.name"] == "shop"
    assert span.protocol == "http/protobuf"


def test_each_kind_of_data_may_have_a_protocol_of_its_own(
    marked: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    endpoint = f"{marked.endpoint('http/protobuf')}/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)

    async def run() -> None:
        tracing = began(Telemetry(traces=True), RecordedLog())
        tracing.sends("shop/mails", 1).end()
        await tracing.close()

    asyncio.run(run())
    assert marked.wait_for_spans("send shop/mails")["send shop/mails"].protocol == "http/protobuf"


@pytest.mark.parametrize("variable", ["PROTOCOL", "TRACES_PROTOCOL"])
def test_an_unknown_protocol_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the spans would go by gRPC to a port for something else."""
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{variable}", "http/json")
    with pytest.raises(CannotStart, match="http/json") as refused:
        process_tracing(Telemetry(traces=True), RecordedLog(), service="maitred-test")
    assert "http/protobuf" in str(refused.value)


@pytest.fixture(params=["closed", "silent"])
def nowhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where nothing listens, or where nothing is ever answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@SILENT
def test_a_program_ends_though_the_receiver_is_silent(
    nowhere: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry would wait for half a minute at the end of a program."""
    at_exit: list[Callable[[], object]] = []
    waits: list[float] = []

    def shutdown(batches: BatchProcessor[object], timeout_millis: float = 30_000) -> None:
        waits.append(timeout_millis)
        end(batches, 0)

    end = BatchProcessor.shutdown
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr(BatchProcessor, "shutdown", shutdown)
    settings = Telemetry(traces=True, endpoint=nowhere)
    tracing, _ = exporting.tracing_of_process(settings, None, service="maitred-test")
    tracing.sends("shop/mails", 1).end()
    for one in at_exit:
        one()
    assert waits == [exporting.CLOSE_SECONDS * 1_000]
    assert "Spans were lost (1): the receiver does not answer." in caplog.messages


@PROTOCOLS
def test_a_receiver_that_is_away_delays_no_stop(
    nowhere: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an export that is under way nor the last one is waited for beyond the bound."""
    # Without the bound the exporters try for longer than a test may take.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")
    for module in (exporting, metric_export):
        monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    settings = Telemetry(
        traces=True, metrics=True, endpoint=nowhere, protocol=protocol, interval_seconds=0.01
    )
    pages = 0

    async def page() -> str:
        nonlocal pages
        pages += 1
        return PAGE

    async def run() -> None:
        log = RecordedLog()
        tracing = began(settings, log)
        tracing.sends("shop/mails", 1).end()
        exported = export_metrics(settings, log, page, service="maitred-test")
        assert exported is not None
        await until(lambda: pages > 0)
        await start.end_telemetry(tracing, exported)
        assert tracing.statistics()["spans_exported"] == 0
        events = log.events("warning")
        assert "spans were lost: the receiver does not answer" in events
        assert "the last metrics were not exported in time" in events
        assert events.count("telemetry was not exported") <= 1, "such lines are bounded"
        assert pages <= 2, "while one page is sent, no other is made"

    asyncio.run(run())


def test_spans_without_room_are_counted_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def run() -> None:
            log = RecordedLog()
            tracing = began(Telemetry(traces=True, endpoint=endpoint), log)
            for _ in range(100):
                tracing.sends("shop/mails", 1).end()
            # Ten are being sent, perhaps; ten wait.
            assert 80 <= tracing.statistics()["spans_lost"] <= 90
            found = [fields["reason"] for _, _, fields in log.lines if "reason" in fields]
            assert found == ["The queue of spans is full."]

        asyncio.run(run())


FORKING = """
import os
from maitred.settings import Telemetry
from maitred.telemetry.exporting import tracing_of_process

settings = Telemetry(traces=True, endpoint="http://127.0.0.1:1", protocol="http/protobuf")
tracing, _ = tracing_of_process(settings, None, service="maitred-test")
for _ in range(10):
    tracing.sends("shop/mails", 1).end()
child = os.fork()
for _ in range(5):
    tracing.sends("shop/mails", 1).end()
if child:
    os.waitpid(child, 0)
print("parent" if child else "child", tracing.statistics()["spans_lost"], flush=True)
os._exit(0)
"""


def test_a_forked_process_has_room_of_its_own() -> None:
    """The spans that wait in the parent are exported there."""
    variables = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "10",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",
    }
    command = [sys.executable, "-c", FORKING]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    assert told.stdout.splitlines()[0] == "child 0"


def test_missing_packages_are_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Telemetry(metrics=True)
    start.check(settings)
    monkeypatch.setattr(start, "find_spec", lambda _name: None)
    with pytest.raises(CannotStart, match=r"needs opentelemetry\.sdk\.trace") as refused:
        start.check(settings)
    assert "maitred[otel]" in str(refused.value.remedy)
    start.check(Telemetry())


def test_bad_variables_of_opentelemetry_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(CannotStart, match=r"soon") as refused:
        process_tracing(Telemetry(traces=True), RecordedLog(), service="maitred-test")
    assert "OTEL_" in str(refused.value.remedy)


def test_off_imports_nothing() -> None:
    processes = "maitred.node.shard_process, maitred.gateway.process, maitred.worker.process"
    off = "settings = maitred.settings.Telemetry(); start.check(settings)"
    begun = "assert start.process_tracing(settings, None, service='x') is None"
    program = (
        f"import sys, maitred.settings, {processes}; from maitred.telemetry import start; {off}; "
        f"{begun}; print(*sys.modules)"
    )
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"opentelemetry", "grpc", "google.protobuf", "requests"}.isdisjoint(loaded)
