"""The metrics of the HTTP listener, in the text format of Prometheus."""

from __future__ import annotations

from typing import Final

from maitred.metrics.exposition import counter, head, histogram_samples
from maitred.metrics.histogram import Histogram

BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""The bounds of the histogram in seconds: from the fastest query to the timeout of most callers."""


class Metrics:
    """The counters of one HTTP listener."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        """Counts requests by route and status."""
        self.latencies: dict[str, Histogram] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.accepted = 0
        self.malformed = 0
        self.memory_refused = 0
        self.tls_failed = 0

    def count_tls_failure(self) -> None:
        """Count a failed TLS handshake."""
        self.tls_failed += 1

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered, or whose stream has begun."""
        key = (route, status)
        requests = self.requests
        requests[key] = requests.get(key, 0) + 1
        latency = self.latencies.get(route)
        if latency is None:
            latency = self.latencies[route] = Histogram(BUCKETS)
        latency.add(seconds)

    def families(self) -> list[str]:
        """Return all lines of the metrics page."""
        lines = counter(
            "maitred_http_requests_total",
            "Requests that were answered, by route and status.",
            [({"route": route, "status": s}, n) for (route, s), n in sorted(self.requests.items())],
        )
        name = "maitred_http_request_seconds"
        lines += head(name, "From the first byte in to the answer.", "histogram")
        for route, latency in sorted(self.latencies.items()):
            lines += histogram_samples(
                name, {"route": route}, BUCKETS, latency.counts, latency.total
            )
        for name, text, value in (
            ("maitred_http_connections_total", "Connections that were accepted.", self.accepted),
            ("maitred_http_malformed_total", "Connections that spoke no HTTP.", self.malformed),
            (
                "maitred_http_tls_failed_total",
                "Connections whose TLS handshake failed.",
                self.tls_failed,
            ),
            (
                "maitred_http_memory_refused_total",
                "Requests and connections refused for the memory that all of them hold.",
                self.memory_refused,
            ),
            ("maitred_http_received_bytes_total", "Of requests.", self.bytes_in),
            ("maitred_http_sent_bytes_total", "Of answers.", self.bytes_out),
        ):
            lines += counter(name, text, [({}, value)])
        return lines
