"""The metrics of the HTTP listener, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class Latency:
    """The histogram of how long the requests of one route took."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Metrics:
    """The counters of one HTTP listener."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        """Counts requests by route and status."""
        self.latencies: dict[str, Latency] = {}
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
            latency = self.latencies[route] = Latency()
        latency.add(seconds)

    def families(self) -> list[str]:
        """Return all lines of the metrics page."""
        lines = counter(
            "maitred_http_requests_total",
            "Requests that were answered, by route and status.",
            [({"route": route, "status": s}, n) for (route, s), n in sorted(self.requests.items())],
        )
        lines += _head(
            "maitred_http_request_seconds", "From the first byte in to the answer.", "histogram"
        )
        for route, latency in sorted(self.latencies.items()):
            sums = list(accumulate(latency.counts))
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), sums, strict=True):
                labels = {"route": route, "le": bound}
                lines.append(_line("maitred_http_request_seconds_bucket", labels, count))
            labels = {"route": route}
            lines.append(_line("maitred_http_request_seconds_sum", labels, latency.total))
            lines.append(_line("maitred_http_request_seconds_count", labels, sums[-1]))
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


def counter(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, object], float]]
) -> list[str]:
    """Return the lines of a counter."""
    return [*_head(name, text, "counter"), *(_line(name, *one) for one in samples)]


def gauge(name: str, text: str, value: float) -> list[str]:
    """Return the lines of a gauge without labels."""
    return gauges(name, text, [({}, value)])


def gauges(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, object], float]]
) -> list[str]:
    """Return the lines of a gauge with labels."""
    return [*_head(name, text, "gauge"), *(_line(name, *one) for one in samples)]


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Mapping[str, object], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(str(one))}"' for key, one in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
