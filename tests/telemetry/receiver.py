"""What tests see of a receiver of OTLP in another process.

    def test_a_task_is_traced(received: Received) -> None:
        with running_node(environment=received.variables(), interpreters=True) as node:
            ...
        spans = received.wait_for_spans("send shop/mails", "process shop/mails")
        assert spans["process shop/mails"].parent == spans["wait shop/mails"].id

The receiver is started once for each process of pytest (the fixture `receiver`, in
tests/telemetry/conftest.py, which other directories can import). The fixture `received` is the part
of it that one test sees: what processes export that were started with `variables()`. Within the
test's own process `settings()` are for `process_tracing`, and `MARK` has to be in
OTEL_RESOURCE_ATTRIBUTES; `marked` sets it.

Nothing here waits for a time: each wait ends when the spans or metrics have arrived, and fails
after a bound that only a hang reaches. Processes with `variables()` export spans after 20 ms. Start
nodes as new interpreters: a fork of a process that uses gRPC cannot use it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from maitred.settings import Telemetry
from tests.node.nodes import START_SECONDS, Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    Protocol = Literal["grpc", "http/protobuf"]

MARK: Final = "maitred.test"
"""The attribute by which what one test exports is told from the rest."""

_numbers = count(1)


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived."""

    name: str
    trace: str
    """Id of the trace, in hexadecimal digits."""
    id: str
    parent: str
    """Id of the parent; empty if it has none."""
    kind: str
    """`internal`, `server`, `client`, `producer` or `consumer`."""
    start: int
    """Nanoseconds since 1970."""
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    """The attributes of the process."""
    links: list[str]
    """Ids of the spans that it is linked to."""
    events: list[tuple[str, dict[str, Any]]]
    is_error: bool
    message: str
    """Why it is an error."""
    state: str
    """The `tracestate`."""
    scope: str
    protocol: str


@dataclass(frozen=True)
class ReceivedPoint:
    """A value of a metric as it arrived."""

    name: str
    kind: str
    """`sum`, `gauge` or `histogram`."""
    unit: str
    text: str
    is_monotonic: bool
    is_cumulative: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]
    start: int
    """Nanoseconds since 1970; 0 for a gauge."""
    at: int
    value: float
    """That of a histogram is its sum."""
    count: int
    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    extremes: tuple[float | None, float | None]
    protocol: str


@dataclass
class Receiver:
    """The process, and everything that it has received."""

    lines: Lines
    grpc: str = ""
    """Where it is."""
    http: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    points: list[ReceivedPoint] = field(default_factory=list)
    _read: int = 0

    def look(self) -> None:
        """Read the lines that have come since the last look."""
        new = self.lines.seen[self._read :]
        self._read += len(new)
        for entry in map(json.loads, new):
            if "grpc" in entry:
                self.grpc = f"http://127.0.0.1:{entry['grpc']}"
                self.http = f"http://127.0.0.1:{entry['http']}"
            for group in entry.get("resourceSpans", ()):
                self.spans += _spans(group, entry["protocol"])
            for group in entry.get("resourceMetrics", ()):
                self.points += _points(group, entry["protocol"])

    def wait(self, found: Callable[[], bool], what: str) -> None:
        """Look whenever something arrives, until it holds."""

        def look() -> bool:
            self.look()
            return found()

        with self.lines.changed:
            assert self.lines.changed.wait_for(look, START_SECONDS), f"waited in vain: {what}"


@dataclass
class Received:
    """What one test exports."""

    receiver: Receiver
    mark: str = field(default_factory=lambda: f"t{next(_numbers)}")

    def endpoint(self, protocol: Protocol = "grpc") -> str:
        return self.receiver.grpc if protocol == "grpc" else self.receiver.http

    def settings(self, protocol: Protocol = "grpc", **settings: Any) -> Telemetry:  # noqa: ANN401
        """For a process that traces; `settings` are others of the group."""
        return Telemetry(**self._group(protocol) | settings)

    def variables(self, protocol: Protocol = "grpc", **settings: object) -> dict[str, str]:
        """The same for the environment of a process."""
        return {
            "OTEL_RESOURCE_ATTRIBUTES": f"{MARK}={self.mark}",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            **{
                f"MAITRED_TELEMETRY__{name.upper()}": str(value)
                for name, value in (self._group(protocol) | settings).items()
            },
        }

    def _group(self, protocol: Protocol) -> dict[str, Any]:
        return {"traces": True, "endpoint": self.endpoint(protocol), "protocol": protocol}

    def spans(self) -> list[ReceivedSpan]:
        """Those that have arrived, in that order."""
        self.receiver.look()
        return [one for one in self.receiver.spans if one.resource.get(MARK) == self.mark]

    def points(self, name: str | None = None) -> list[ReceivedPoint]:
        """The values of metrics that have arrived, or those of one."""
        self.receiver.look()
        return [
            one
            for one in self.receiver.points
            if one.resource.get(MARK) == self.mark and name in {None, one.name}
        ]

    def wait_until(
        self, holds: Callable[[list[ReceivedSpan]], bool], what: str
    ) -> list[ReceivedSpan]:
        """Wait until it holds for all spans that have arrived, and return them."""
        self.receiver.wait(lambda: holds(self.spans()), what)
        return self.spans()

    def wait_for_spans(self, *names: str) -> dict[str, ReceivedSpan]:
        """Wait for one span of each name; return the first of each, by name, in this order."""

        def arrived(spans: list[ReceivedSpan]) -> bool:
            return set(names) <= {one.name for one in spans}

        spans = self.wait_until(arrived, f"spans {names}")
        return {name: next(one for one in spans if one.name == name) for name in names}

    def wait_for_points(
        self, holds: Callable[[list[ReceivedPoint]], bool], what: str
    ) -> list[ReceivedPoint]:
        """Wait until it holds for all values of metrics that have arrived, and return them."""
        self.receiver.wait(lambda: holds(self.points()), what)
        return self.points()


@contextmanager
def started_receiver() -> Iterator[Receiver]:
    """Start a receiver, and end it."""
    command = [sys.executable, "-m", "tests.telemetry.receiver_process"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    lines = Lines()
    reader = threading.Thread(target=lines.follow, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        receiver = Receiver(lines)
        receiver.wait(lambda: bool(receiver.grpc), "the receiver's ports")
        yield receiver
    finally:
        process.kill()
        process.wait()
        reader.join()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


# From the JSON of protobuf


def _value(found: dict[str, Any]) -> Any:  # noqa: ANN401 - of any type
    for kind, value in found.items():
        if kind == "intValue":
            return int(value)
        if kind == "arrayValue":
            return [_value(one) for one in value.get("values", ())]
        return value
    return None


def _attributes(found: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: _value(one["value"]) for one in found.get("attributes", ())}


def _hex(text: str) -> str:
    return base64.b64decode(text).hex()


def _spans(group: dict[str, Any], protocol: str) -> Iterator[ReceivedSpan]:
    resource = _attributes(group["resource"])
    for scope in group["scopeSpans"]:
        for one in scope["spans"]:
            status = one.get("status", {})
            yield ReceivedSpan(
                name=one["name"],
                trace=_hex(one["traceId"]),
                id=_hex(one["spanId"]),
                parent=_hex(one.get("parentSpanId", "")),
                kind=one["kind"].removeprefix("SPAN_KIND_").lower(),
                start=int(one["startTimeUnixNano"]),
                end=int(one["endTimeUnixNano"]),
                attributes=_attributes(one),
                resource=resource,
                links=[_hex(link["spanId"]) for link in one.get("links", ())],
                events=[(event["name"], _attributes(event)) for event in one.get("events", ())],
                is_error=status.get("code") == "STATUS_CODE_ERROR",
                message=status.get("message", ""),
                state=one.get("traceState", ""),
                scope=scope["scope"]["name"],
                protocol=protocol,
            )


def _points(group: dict[str, Any], protocol: str) -> Iterator[ReceivedPoint]:
    resource = _attributes(group["resource"])
    for scope in group["scopeMetrics"]:
        for metric in scope["metrics"]:
            kind = next(one for one in ("sum", "gauge", "histogram") if one in metric)
            data = metric[kind]
            for point in data.get("dataPoints", ()):
                value = point.get("asInt", point.get("asDouble", point.get("sum", 0)))
                yield ReceivedPoint(
                    name=metric["name"],
                    kind=kind,
                    unit=metric.get("unit", ""),
                    text=metric.get("description", ""),
                    is_monotonic=data.get("isMonotonic", False),
                    is_cumulative=data.get("aggregationTemporality")
                    == "AGGREGATION_TEMPORALITY_CUMULATIVE",
                    attributes=_attributes(point),
                    resource=resource,
                    start=int(point.get("startTimeUnixNano", 0)),
                    at=int(point["timeUnixNano"]),
                    value=float(value),
                    count=int(point.get("count", 0)),
                    bounds=tuple(point.get("explicitBounds", ())),
                    buckets=tuple(map(int, point.get("bucketCounts", ()))),
                    extremes=(point.get("min"), point.get("max")),
                    protocol=protocol,
                )
