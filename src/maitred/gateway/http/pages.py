"""The pages for monitoring and tools: health, readiness, metrics and the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import json

from maitred.client.query_gateway import QueryGateway
from maitred.errors import Unavailable
from maitred.gateway.http.answers import GatewayState
from maitred.gateway.http.formats import AS_JSON, JSON
from maitred.gateway.http.openapi import document
from maitred.metrics.exposition import CONTENT_TYPE, Samples, counter, gauge, gauges, page
from maitred.metrics.families import GATEWAY_ERRORS, PROCESSES
from maitred.monitor.process_vitals import add_vitals

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection

    from maitred.client.statistics import GatewayStatistics
    from maitred.gateway.gateway import Gateway
    from maitred.gateway.http.budget import Budgets
    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.metrics import Metrics
    from maitred.gateway.http.request import HttpRequest
    from maitred.monitor.loop_lag import LoopLag
    from maitred.security.guard import Guard

PROMETHEUS = CONTENT_TYPE.encode()


class MonitoredListener(Protocol):
    """The listener that the pages describe."""

    gateway: Gateway
    """The gateway that the listener leads to."""
    guard: Guard
    """Checks the credentials of callers, and their permissions."""
    metrics: Metrics
    """Counts connections, requests and bytes."""
    budgets: Budgets
    """Count the bytes that all connections hold."""
    refused: Counter[str]
    """Errors given as answers, by code; also those that broke off a stream."""

    lag: LoopLag | None
    """Measures the event loop of the process; None: nothing does."""

    @property
    def connections(self) -> Collection[HttpConnection]:
        """The open connections of callers of the HTTP API."""

    @property
    def draining(self) -> bool:
        """Whether the gateway is stopping."""

    @property
    def needs_user(self) -> frozenset[str]:
        """The handlers that require authentication."""


class Pages:
    """The handlers of these pages."""

    def __init__(self, listener: MonitoredListener) -> None:
        self._listener = listener
        self._gateway = listener.gateway
        self._document = json.encode(
            document(with_users=listener.guard.required, closed=listener.needs_user)
        )

    def health(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer that the gateway is alive, or stopping."""
        state = GatewayState("stopping" if self._listener.draining else "alive")
        connection.answer(request, 200, JSON, AS_JSON.value(state))

    def ready(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer whether the gateway is connected to a node; 503 if not."""
        if not self._gateway.is_ready:
            raise Unavailable("The gateway has no connection to its node.", remedy="Try later.")
        connection.answer(request, 200, JSON, AS_JSON.value(GatewayState("ready")))

    def document(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer with the OpenAPI document."""
        connection.answer(request, 200, JSON, self._document)

    def metrics_page(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer with the metrics, for Prometheus."""
        connection.answer(request, 200, PROMETHEUS, self.metrics().encode())

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        listener = self._listener
        lines = listener.metrics.families()
        lines += gauge("maitred_http_connections", "Open now.", len(listener.connections))
        busy = sum(one.is_busy for one in listener.connections)
        lines += gauge("maitred_http_requests_under_way", "Not answered yet.", busy)
        lines += gauges(
            "maitred_http_held_bytes",
            "What all connections hold, by the setting that limits it.",
            [({"limit": one.setting}, one.held) for one in listener.budgets.all()],
        )
        lines += gauge(
            "maitred_gateway_ready", "1: its node is reached.", int(self._gateway.is_ready)
        )
        lines += counter(
            GATEWAY_ERRORS.name,
            GATEWAY_ERRORS.text,
            [({"code": code}, count) for code, count in sorted(listener.refused.items())],
        )
        lines += self._access_families()
        querying = self._gateway.querying
        if querying is not None:
            table = querying.table
            lines += counter(
                "maitred_queries_total",
                "How often queries reached each status.",
                [({"status": status}, count) for status, count in sorted(table.counts.items())],
            )
            lines += gauge("maitred_queries_under_way", "Waiting or running.", table.under_way)
            if isinstance(querying, QueryGateway):
                lines += _dispatch_families(querying.statistics())
        text = "\n".join(lines) + "\n"
        if listener.lag is not None:
            samples = Samples()
            tracing = self._gateway.surroundings.tracing
            add_vitals(samples, "gateway", listener.lag, tracing)
            text += page(PROCESSES, [samples.lines])
        return text

    def _access_families(self) -> list[str]:
        """Render the metrics of logins and of reloaded files."""
        guard = self._listener.guard
        authenticator, reloading = guard.authenticator, guard.reloading
        lines = counter(
            "maitred_logins_total",
            "Logins by outcome: remembered, verified, wrong, or why they were refused unseen.",
            [({"outcome": one}, count) for one, count in sorted(authenticator.outcomes.items())],
        )
        lines += gauge(
            "maitred_logins_waiting", "Secrets that wait to be verified.", authenticator.waiting
        )
        lines += counter(
            "maitred_reloads_total",
            "How often files were read again; those that failed left the old state.",
            [
                ({"part": part, "state": state}, count)
                for (part, state), count in sorted(reloading.outcomes.items())
            ],
        )
        if guard.audit is not None:
            lines += counter(
                "maitred_audit_records_total",
                "Audit records by what came of them; a write that failed is tried again.",
                [({"outcome": one}, count) for one, count in sorted(guard.audit.counts.items())],
            )
        lines += gauges(
            "maitred_certificate_expires_seconds",
            "When a certificate expires, in seconds since 1970.",
            [({"part": part}, at) for part, at in sorted(reloading.expiries().items())],
        )
        return lines


def _dispatch_families(statistics: GatewayStatistics) -> list[str]:
    """Render the metrics of waiting queries and of connections to workers."""
    lines = []
    for name, text, value in (
        ("waiting", "Queries that wait for a worker now.", statistics.waiting),
        ("links", "Connections to workers.", statistics.links),
        ("in_line", "Queries that wait here because no worker has room.", statistics.queued),
    ):
        lines += gauge(f"maitred_queries_{name}", text, value)
    for name, text, value in (
        (
            "links_refused",
            "Connections to workers given up because of what answered there.",
            statistics.links_refused,
        ),
        ("shed", "Queries that were refused here because no worker had room.", statistics.shed),
        (
            "refused_by_workers",
            "How often a worker had no room for a query that was sent to it.",
            statistics.refused_by_workers,
        ),
        (
            "relayed",
            "Queries that went through the node, because their worker was out of reach.",
            statistics.relayed,
        ),
    ):
        lines += counter(f"maitred_queries_{name}_total", text, [({}, value)])
    return lines
