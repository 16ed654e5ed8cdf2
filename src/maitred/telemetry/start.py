"""How a process begins to trace, if its settings say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import CannotStart

if TYPE_CHECKING:
    from maitred.logs import Logger
    from maitred.settings import Telemetry
    from maitred.telemetry.tracing import Tracing


def check_installed() -> None:
    """Raise `CannotStart` unless the packages of the extra `otel` are installed."""
    try:
        import opentelemetry.exporter.otlp.proto.grpc
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"opentelemetry", "grpc", "google"}:
            raise
        raise CannotStart(
            f"Telemetry needs the package {missing.name}, which is not installed.",
            remedy="Install it with: pip install 'maitred[otel]'",
        ) from None


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

    return tracing_of_process(settings, log, service=service, **attributes)


def program_tracing(sample: float = 1.0) -> Tracing:
    """Return the tracing of a program that uses maitred: it records with the provider that the
    program has set up, and records nothing as long as there is none. `sample` is the fraction of
    the traces that begin here and are recorded."""
    check_installed()
    import random

    from opentelemetry.trace import get_tracer_provider

    from maitred.telemetry.otel_tracing import OpenTelemetryTracing

    return OpenTelemetryTracing(get_tracer_provider(), sample=sample, random=random.random)
