"""Sends spans and metrics to a receiver by OTLP, in the background of a process.

What the settings leave open, OpenTelemetry's own variables decide (`OTEL_EXPORTER_OTLP_...`,
`OTEL_SERVICE_NAME`, `OTEL_BSP_...`), as operators of OpenTelemetry are used to.

A receiver that is away costs no task anything: spans wait in a bounded queue of a thread of their
own, and what does not fit is dropped, counted and logged.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import random
import threading
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4
from weakref import ref

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from maitred import __version__
from maitred.line_budget import LineBudget, left_out
from maitred.telemetry.otel_tracing import OpenTelemetryTracing
from maitred.telemetry.quick_spans import QuickSpan, QuickSpans
from maitred.telemetry.sdk_spans import SdkSpans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace import ReadableSpan

    from maitred.logs import Logger
    from maitred.settings import Telemetry

CLOSE_SECONDS: Final = 2.0
"""Longest that a stopping process or program waits for a receiver. A node waits for its supervisor,
its gateway and its shards in turn, and all of that is to fit into the ten seconds that container
runtimes give."""

QUIET_SECONDS: Final = 10.0
"""Pause between two lines about failed exports."""

QUEUED_SPANS: Final = 2048
"""Most spans that wait for their export, unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise: what
OpenTelemetry's specification has. They take some 5 MB."""

_LOGGER: Final = "opentelemetry"
own_log: Final = logging.getLogger(f"{_LOGGER}.maitred")
"""For what this package has to say beside OpenTelemetry's own complaints."""
_QUEUE_VARIABLE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
_SDK_VARIABLES: Final = ("OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED")
"""Variables that only the SDK's own spans obey."""
_RESOURCE_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"


def tracing_of_process(
    settings: Telemetry,
    log: Logger | None,
    *,
    service: str,
    **attributes: str | int,
) -> tuple[OpenTelemetryTracing, TracerProvider]:
    """Return the tracing of a process of maitred itself, and its provider: it exports to the
    receiver of the settings. `attributes` describe the process (`maitred.NAME`).

    Without a `log` the process is another program's: OpenTelemetry logs as it does by itself, and
    what is left is exported when the program ends."""
    described = resource(service, attributes)
    provider = TracerProvider(resource=described, shutdown_on_exit=False)
    exporter = CountingExporter(
        _span_exporter(settings), takes_quick=not _is_http(settings, "TRACES")
    )
    batches = CountingBatches(exporter)
    provider.add_span_processor(batches)
    if log is None:
        atexit.register(batches.end)
    else:
        log_failures(log)
    is_by_the_sdk = any(name in os.environ for name in _SDK_VARIABLES)
    spans = SdkSpans(provider) if is_by_the_sdk else QuickSpans(batches.queue, described)

    async def close() -> None:
        if not await end_provider(provider.shutdown, log):
            exporter.shutdown()  # ends what hangs

    tracing = OpenTelemetryTracing(
        spans,
        sample=settings.sample,
        random=random.random,
        statistics=exporter.statistics,
        close=close,
    )
    return tracing, provider


@cache
def _instance() -> str:
    """Return the id that tells this process from others with the same name."""
    return str(uuid4())


def resource(service: str, attributes: Mapping[str, str | int]) -> Resource:
    """Return the description of this process. What OpenTelemetry's variables say takes
    precedence."""
    found: dict[str, str | int] = {f"maitred.{name}": one for name, one in attributes.items()}
    found["service.name"] = service
    found["service.version"] = __version__
    found["service.instance.id"] = _instance()
    found["process.pid"] = os.getpid()
    said = os.environ.get(_RESOURCE_VARIABLE, "").split(",")
    named = {one.partition("=")[0].strip() for one in said}
    if os.environ.get("OTEL_SERVICE_NAME"):
        named.add("service.name")
    return Resource.create({name: one for name, one in found.items() if name not in named})


def _is_http(settings: Telemetry, kind: Literal["TRACES", "METRICS"]) -> bool:
    """Return whether this kind of data goes by HTTP; raise `ValueError` if a variable asks for a
    protocol that maitred does not speak."""
    if settings.protocol is not None:
        return settings.protocol == "http/protobuf"
    for variable in (f"OTEL_EXPORTER_OTLP_{kind}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable, "").strip()
        if protocol not in {"", "grpc", "http/protobuf"}:
            raise ValueError(f"{variable} is {protocol[:60]!r}, not grpc or http/protobuf")
        if protocol:
            return protocol == "http/protobuf"
    return False


def _span_exporter(settings: Telemetry) -> SpanExporter:
    endpoint = settings.endpoint
    if _is_http(settings, "TRACES"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=_path(endpoint, "v1/traces"))
    from maitred.telemetry.quick_encoding import QuickSpanExporter

    return QuickSpanExporter(endpoint=endpoint, insecure=_is_plain(endpoint))


def metric_exporter(settings: Telemetry) -> MetricExporter:
    """Return what sends metrics to the receiver of the settings."""
    endpoint = settings.endpoint
    if _is_http(settings, "METRICS"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter(endpoint=_path(endpoint, "v1/metrics"))
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
        OTLPMetricExporter as GrpcMetricExporter,
    )

    return GrpcMetricExporter(endpoint=endpoint, insecure=_is_plain(endpoint))


def _path(endpoint: str | None, path: str) -> str | None:
    """Return where one kind of data goes, as `OTEL_EXPORTER_OTLP_ENDPOINT` has it for all kinds."""
    return None if endpoint is None else f"{endpoint.rstrip('/')}/{path}"


def _is_plain(endpoint: str | None) -> bool | None:
    """Return whether the connection is without TLS; None: OpenTelemetry's variables decide."""
    return None if endpoint is None else not endpoint.startswith("https:")


class CountingExporter(SpanExporter):
    """Counts the spans that an exporter sent, and those that it lost."""

    def __init__(self, exporter: SpanExporter, *, takes_quick: bool = False) -> None:
        """`takes_quick` says that the exporter encodes quick spans itself."""
        self._exporter = exporter
        self._takes_quick = takes_quick
        self.taken = 0
        """Spans that this was given."""
        self.exported = 0
        self.failed = 0
        """Spans that it was given and could not send."""
        self.dropped = 0
        """Spans for which there was no room before."""

    def export(self, spans: Sequence[ReadableSpan | QuickSpan]) -> SpanExportResult:
        """Send the spans, and count them."""
        self.taken += len(spans)
        try:
            if not self._takes_quick:
                spans = [one.readable() if isinstance(one, QuickSpan) else one for one in spans]
            result = self._exporter.export(spans)  # type: ignore[arg-type]
        except BaseException:
            self.failed += len(spans)
            raise
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """End the connection to the receiver."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what the exporter still has."""
        return self._exporter.force_flush(timeout_millis)

    def statistics(self) -> dict[str, int]:
        """Return both counts."""
        return {"spans_exported": self.exported, "spans_lost": self.failed + self.dropped}


class CountingBatches(BatchSpanProcessor):
    """Exports spans in batches. Counts and drops those for which its queue has no room, which
    OpenTelemetry drops, too, but does not count."""

    def __init__(self, exporter: CountingExporter) -> None:
        self._room = int(os.environ.get(_QUEUE_VARIABLE) or QUEUED_SPANS)
        super().__init__(exporter, max_queue_size=self._room)
        self._counting = exporter
        self._lock = threading.Lock()
        self._given = 0
        self._budget = LineBudget(QUIET_SECONDS)
        weak = ref(self)  # what is registered stays for as long as the process

        def forked() -> None:
            if (batches := weak()) is not None:
                batches._forked()  # noqa: SLF001 - its own

        os.register_at_fork(after_in_child=forked)

    def _forked(self) -> None:
        """Begin anew in a forked process, where OpenTelemetry empties the queue."""
        self._lock = threading.Lock()
        self._given = self._counting.taken

    def end(self) -> None:
        """Export what is left, for a bounded time, in this thread: a program that ends cannot start
        another."""
        failed_before = self._counting.failed
        self._batch_processor.shutdown(int(CLOSE_SECONDS * 1_000))
        left = self._given - self._counting.exported - failed_before
        if left > 0:
            own_log.warning("Spans were lost (%d): the receiver does not answer.", left)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span for its export."""
        if span.context and span.context.trace_flags.sampled:
            self.queue(span)

    def queue(self, span: ReadableSpan | QuickSpan) -> None:
        """Queue a span that is recorded."""
        with self._lock:  # spans end in threads of plain handlers, too
            has_room = self._given - self._counting.taken < self._room
            if has_room:
                self._given += 1
            else:
                self._counting.dropped += 1
        if has_room:
            self._batch_processor.emit(span)  # type: ignore[arg-type]
        elif self._budget.take(time.monotonic()) is not None:
            own_log.warning("The queue of spans is full.")


async def end_provider(shutdown: Callable[[], object], log: Logger | None) -> bool:
    """End a provider of spans, which exports what is left; return whether it ended in time."""
    in_time = await in_thread(shutdown)
    if not in_time and log is not None:
        log.warning("spans were lost: the receiver does not answer", seconds=CLOSE_SECONDS)
    return in_time


async def in_thread(work: Callable[[], object]) -> bool:
    """Run something that may block in a thread that does not keep the process alive; return whether
    it ended within `CLOSE_SECONDS`."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    def run() -> None:
        try:
            work()
        finally:
            with suppress(RuntimeError):  # it took too long, and the loop is closed
                loop.call_soon_threadsafe(tell)

    start_thread(run)
    done, _ = await asyncio.wait({ended}, timeout=CLOSE_SECONDS)
    return bool(done)


def start_thread(work: Callable[[], None]) -> None:
    """Run something that may block in a thread that does not keep the process alive."""
    threading.Thread(target=work, name="maitred-telemetry", daemon=True).start()


class _FailureLog(logging.Handler):
    """Writes what OpenTelemetry logs into the log of the process, a line in ten seconds."""

    def __init__(self, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._budget = LineBudget(QUIET_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        unlogged = self._budget.take(time.monotonic())
        if unlogged is not None:
            self._log.warning(
                "telemetry was not exported", reason=record.getMessage(), **left_out(unlogged)
            )


def log_failures(log: Logger) -> None:
    """Have OpenTelemetry's own complaints written to the log of this process."""
    found = logging.getLogger(_LOGGER)
    if not any(isinstance(one, _FailureLog) for one in found.handlers):
        found.addHandler(_FailureLog(log))
        found.propagate = False
