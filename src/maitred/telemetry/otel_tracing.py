"""Traces by OpenTelemetry: turns what happens to tasks and queries into spans.

Whether a trace is recorded is decided once, where it begins: by the current span, if there is one,
else by a fraction (`sample`) that is drawn before OpenTelemetry is asked. A span that is not
recorded would cost OpenTelemetry several microseconds, a third of what a whole task costs.

Ids of spans that another process has to know are computed from the context (`derived_span_id`).
"""

from __future__ import annotations

import time
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import context as contexts
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, get_current_span

from maitred.telemetry.sdk_spans import Unrecorded, remote, trace_of
from maitred.trace_context import (
    NOT_RECORDED,
    child_of,
    derived_span_id,
    in_round,
    is_context,
    is_recorded,
    is_wait_recorded,
    packed,
    round_of,
    waits_recorded,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.telemetry.tracing import Attributes, OpenSpan, TaskId

SYSTEM: Final = "maitred"


class SpanRecorder(Protocol):
    """Begins the spans of one process."""

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        parent: bytes,
        *,
        span_id: int = 0,
        link: int = 0,
        start_ns: int | None = None,
    ) -> OpenSpan:
        """Begin a span within the trace of its parent, or a new one if that is empty. `link` is the
        id of another span of the trace. The id and the start are by default a random one and
        now."""


class OpenTelemetryTracing:
    """Decides what is recorded; see `Tracing` for what each method means."""

    def __init__(
        self,
        spans: SpanRecorder,
        *,
        sample: float,
        random: Callable[[], float],
        statistics: Callable[[], dict[str, int]] | None = None,
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`random` returns a number from 0 to 1, for each trace that begins here; the fraction
        `sample` of them is recorded. `close` exports what is left; without it, that is up to the
        owner of the spans."""
        self._spans = spans
        self._sample = sample
        self._random = random
        self._statistics = statistics
        self._close = close
        ids = RandomIdGenerator()
        unrecorded = packed(ids.generate_trace_id(), ids.generate_span_id(), 0)
        self._not_recorded = Unrecorded(NOT_RECORDED, remote(unrecorded))
        self.outside = copy_context()
        self.outside.run(self._not_recorded.enter)

    # Producers

    def skipped(self) -> bytes | None:
        current = contexts.get_current()
        if not current:  # no span, and no baggage either
            return NOT_RECORDED if self._sample <= self._random() else None
        span = get_current_span(current).get_span_context()
        if not span.is_valid:
            return NOT_RECORDED if self._sample <= self._random() else None
        return None if span.trace_flags.sampled else trace_of(span)

    def sends(self, queue: str, tasks: int, parent: bytes = b"") -> OpenSpan:
        attributes = _of_queue(queue, "send")
        if tasks > 1:
            attributes["messaging.batch.message_count"] = tasks
        return self._begin(parent or _current(), f"send {queue}", SpanKind.PRODUCER, attributes)

    # Nodes

    def waited(
        self, trace: bytes, task: TaskId, attempt: int, seconds: float, *, forwarded: bool
    ) -> bytes:
        if not is_recorded(trace):
            return trace
        attributes = _of_task(task, "wait", attempt)
        if forwarded:
            attributes["maitred.forwarded"] = True
        self._spans.start(
            f"wait {task.queue}",
            SpanKind.INTERNAL,
            attributes,
            trace,
            span_id=derived_span_id(trace, "wait", str(task), attempt),
            start_ns=time.time_ns() - int(max(seconds, 0.0) * 1e9),
        ).end()
        return waits_recorded(trace)

    # Workers

    def processes(self, trace: bytes, task: TaskId, attempt: int, *, worker: str) -> OpenSpan:
        if trace == NOT_RECORDED:
            return self._not_recorded
        attributes = _of_task(task, "process", attempt)
        attributes["maitred.worker"] = worker
        name = f"process {task.queue}"
        if not is_recorded(trace):
            return self._begin_at_worker(trace, name, SpanKind.CONSUMER, attributes)
        item = str(task)
        parent = trace
        if is_wait_recorded(trace):
            parent = child_of(trace, derived_span_id(trace, "wait", item, attempt))
        return self._spans.start(
            name,
            SpanKind.CONSUMER,
            attributes,
            parent,
            span_id=derived_span_id(trace, "run", item, attempt),
            link=derived_span_id(trace, "run", item, attempt - 1) if attempt > 1 else 0,
        )

    def answers(self, trace: bytes, queue: str, query: str, *, worker: str) -> OpenSpan:
        attempt = max(round_of(trace), 1)
        attributes: Attributes = {
            "rpc.system": SYSTEM,
            "rpc.service": queue,
            "maitred.query": query,
            "maitred.attempt": attempt,
            "maitred.worker": worker,
        }
        name = f"answer {queue}"
        if not is_recorded(trace):
            return self._begin_at_worker(trace, name, SpanKind.SERVER, attributes)
        base = in_round(trace, 0)  # the same for all attempts, whose number the round is
        # Without the gateway: a worker may know it by an address, which changes with the link.
        item = f"{queue} {query.rpartition('/')[2]}"
        return self._spans.start(
            name,
            SpanKind.SERVER,
            attributes,
            trace,
            span_id=derived_span_id(base, "run", item, attempt),
            link=derived_span_id(base, "run", item, attempt - 1) if attempt > 1 else 0,
        )

    # Gateways

    def queries(self, queue: str, parent: bytes, *, served: bool) -> OpenSpan:
        if not parent:
            trace = self.skipped()
            if trace == NOT_RECORDED:
                return self._not_recorded
            if trace is not None:
                return Unrecorded(trace, contexts.get_current())
            parent = _current()
        attributes: Attributes = {"rpc.system": SYSTEM, "rpc.service": queue}
        kind = SpanKind.SERVER if served else SpanKind.CLIENT
        return self._begin(parent, f"query {queue}", kind, attributes)

    # All

    def statistics(self) -> dict[str, int]:
        return {} if self._statistics is None else self._statistics()

    async def close(self) -> None:
        if self._close is not None:
            await self._close()

    def _begin_at_worker(
        self, trace: bytes, name: str, kind: SpanKind, attributes: Attributes
    ) -> OpenSpan:
        """Begin a span whose caller does not record its trace, or does not trace at all."""
        if not is_context(trace) and self._sample <= self._random():
            return self._not_recorded
        return self._begin(trace, name, kind, attributes)

    def _begin(self, parent: bytes, name: str, kind: SpanKind, attributes: Attributes) -> OpenSpan:
        """Begin a span with this parent, unless the trace of the parent is not recorded."""
        if parent == NOT_RECORDED:
            return self._not_recorded
        if not is_context(parent):
            parent = b""
        elif not is_recorded(parent):
            return Unrecorded(parent, remote(parent))
        return self._spans.start(name, kind, attributes, parent)


def _current() -> bytes:
    """Return the context of the current span; empty if there is none."""
    span = get_current_span().get_span_context()
    return trace_of(span) if span.is_valid else b""


def _of_queue(queue: str, operation: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
    }


def _of_task(task: TaskId, operation: str, attempt: int) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": task.queue,
        "messaging.destination.partition.id": str(task.partition),
        "messaging.message.id": str(task),
        "maitred.attempt": attempt,
    }
