"""The app of a worker that has set up OpenTelemetry itself, with spans that wait for an hour."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import maitred

provider = TracerProvider()
provider.add_span_processor(
    BatchSpanProcessor(OTLPSpanExporter(insecure=True), schedule_delay_millis=3_600_000)
)
trace.set_tracer_provider(provider)

app = maitred.App("shop")


@app.handler("orders")
async def order(number: int, seconds: float = 0.0) -> int:  # noqa: ARG001 - as the other shop's
    """Return the number."""
    return number
