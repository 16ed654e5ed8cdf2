"""How a process begins to trace and to export metrics, if its settings say so."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from maitred.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.logs import Logger
    from maitred.settings import Telemetry
    from maitred.telemetry.metric_export import MetricExport
    from maitred.telemetry.tracing import Tracing

WORKER_SERVICE: Final = "maitred-worker"
"""Name of the process of a worker for receivers of telemetry."""

APP_SERVICE: Final = "maitred-app"
"""Name of a program that has set up nothing of OpenTelemetry."""

_NEEDED: Final = (
    "opentelemetry.sdk.trace",
    "opentelemetry.exporter.otlp.proto.grpc",
    "opentelemetry.exporter.otlp.proto.http",
)


def check_installed() -> None:
    """Raise `CannotStart` unless the packages of the extra `otel` are installed. They are looked
    for and not imported: the supervisor of a node may not need the 25 MB that they take."""
    for module in _NEEDED:
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise CannotStart(
                f"Telemetry needs {module}, which is not installed.",
                remedy="Install it with: pip install 'maitred[otel]'",
            )


def check(settings: Telemetry) -> None:
    """Raise `CannotStart` if a process with these settings could not begin."""
    if settings.traces or settings.metrics:
        check_installed()


def process_tracing(
    settings: Telemetry, log: Logger, *, service: str, **attributes: str | int
) -> Tracing | None:
    """Return the tracing of a process of maitred, which exports to the receiver of its settings;
    None if it does not trace. `attributes` describe the process to the receiver, as `maitred.NAME`.
    """
    if not settings.traces:
        return None
    check_installed()
    from maitred.telemetry.exporting import tracing_of_process

    try:
        return tracing_of_process(settings, log, service=service, **attributes)[0]
    except ValueError as problem:
        raise _refused(problem) from problem


def worker_tracing(settings: Telemetry, log: Logger, *, name: str) -> Tracing | None:
    """Return the tracing of a worker's process; None if it does not trace. Closing it ends the
    provider, also one that the app has set up: a worker ends without `atexit`."""
    return _of_whole_process(settings, log, WORKER_SERVICE, worker=name)


def app_tracing(settings: Telemetry) -> Tracing | None:
    """Return the tracing of a program that its environment asks to trace; None if it does not."""
    return _of_whole_process(settings, None, APP_SERVICE)


def program_tracing(sample: float = 1.0, log: Logger | None = None) -> Tracing:
    """Return the tracing of a program that uses maitred: it records with the provider that the
    program has set up, and records nothing as long as there is none. `sample` is the fraction of
    the traces that begin here and are recorded. With a `log` the program ends with its tracing,
    and so does the provider; without, that is up to the program."""
    check_installed()
    import random

    from opentelemetry.trace import get_tracer_provider

    from maitred.telemetry.otel_tracing import OpenTelemetryTracing
    from maitred.telemetry.sdk_spans import SdkSpans

    provider = get_tracer_provider()
    shutdown = getattr(provider, "shutdown", None)
    close = None
    if log is not None and shutdown is not None:
        from maitred.telemetry.exporting import end_provider

        close = partial(end_provider, shutdown, log)
    spans = SdkSpans(provider)
    return OpenTelemetryTracing(spans, sample=sample, random=random.random, close=close)


def _of_whole_process(
    settings: Telemetry, log: Logger | None, service: str, **attributes: str | int
) -> Tracing | None:
    """Record with OpenTelemetry as the program has set it up. If it has not, make a provider and
    set it for the whole process, so that libraries that the program uses are traced as well."""
    if not settings.traces:
        return None
    check_installed()
    from opentelemetry import trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return program_tracing(settings.sample, log)
    from maitred.telemetry.exporting import tracing_of_process

    try:
        tracing, provider = tracing_of_process(settings, log, service=service, **attributes)
    except ValueError as problem:
        raise _refused(problem) from problem
    trace.set_tracer_provider(provider)
    return tracing


def export_metrics(
    settings: Telemetry,
    log: Logger,
    page: Callable[[], Awaitable[str]],
    *,
    service: str,
    **attributes: str | int,
) -> MetricExport | None:
    """Begin to export the metrics page that `page` returns, on the running loop; return what ends
    it, or None if the settings do not ask for it. `attributes` describe the process."""
    if not settings.metrics:
        return None
    check_installed()
    from maitred.telemetry.exporting import resource
    from maitred.telemetry.metric_export import MetricExport

    try:
        return MetricExport(settings, log, page, resource(service, attributes))
    except ValueError as problem:
        raise _refused(problem) from problem


async def end_telemetry(tracing: Tracing | None, exporting: MetricExport | None) -> None:
    """Export what is left, both at the same time, for a bounded time."""
    ends = [] if tracing is None else [tracing.close()]
    if exporting is not None:
        ends.append(exporting.stop())
    await asyncio.gather(*ends)


def _refused(problem: ValueError) -> CannotStart:
    return CannotStart(
        f"OpenTelemetry cannot begin: {str(problem).removesuffix('.')}.",
        remedy="Look at the variables that begin with OTEL_.",
    )
