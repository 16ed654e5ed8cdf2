"""A receiver of OTLP in a process of its own: `python -m tests.telemetry.receiver_process`.

It serves the services of opentelemetry-proto by gRPC and by HTTP, and writes a line of JSON for
each request that it takes. The first line has its ports. It ends when its standard input is closed.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

_writing = threading.Lock()


def write(entry: object) -> None:
    """Write one line, whole."""
    line = json.dumps(entry)
    with _writing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def take(protocol: str, request: Message) -> None:
    """Write what was received."""
    write({"protocol": protocol, **MessageToDict(request)})


class Traces(TraceServiceServicer):
    def Export(self, request: Any, context: object) -> Any:  # noqa: ANN401, N802, ARG002
        take("grpc", request)
        return ExportTraceServiceResponse()


class Metrics(MetricsServiceServicer):
    def Export(self, request: Any, context: object) -> Any:  # noqa: ANN401, N802, ARG002
        take("grpc", request)
        return ExportMetricsServiceResponse()


KINDS: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        kinds = KINDS.get(self.path)
        if kinds is None or self.headers["Content-Type"] != "application/x-protobuf":
            self.send_error(404)
            return
        request = kinds[0]()
        request.ParseFromString(body)
        take("http/protobuf", request)
        answer = kinds[1]().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


def main() -> None:
    """Serve until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    write({"grpc": port, "http": http.server_port})
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
