"""A receiver of spans by OTLP that counts them and keeps none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:  # noqa: ANN401, ARG002, N802 - as gRPC has it
        return ExportTraceServiceResponse()


@contextmanager
def receiver() -> Iterator[int]:
    """Receive spans in threads of this process; the block gets the port."""
    server = grpc.server(ThreadPoolExecutor(2))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(_Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()
