"""Turns a page of metrics into OpenTelemetry's form, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from maitred import __version__
from maitred.metrics.cumulative import CumulativeSeries
from maitred.metrics.page_reader import read_page
from maitred.telemetry.sdk_spans import SCOPE

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from maitred.metrics.page_reader import Attributes, HistogramSample, PageFamily

_UNKNOWN: Final = cast("float", None)
"""Stands for the least and the greatest value of a histogram. OTLP may leave them out; the type of
the SDK does not say so."""

_UNITS: Final = {"_seconds": "s", "_bytes": "By"}
"""Units by the ends of names, in the letters of UCUM."""


class MetricPages:
    """Turns the pages of one process into OpenTelemetry's form, one after the other."""

    def __init__(self, resource: Resource, began: int) -> None:
        """`began` is when the process began, in nanoseconds since 1970."""
        self._resource = resource
        self._series = CumulativeSeries(began)
        self._scope = InstrumentationScope(SCOPE, __version__)

    def data(self, page: str, now: int) -> MetricsData:
        """Return the metrics on a page that was made now."""
        moment = self._series.moment(now)
        metrics = [self._metric(family, moment) for family in read_page(page)]
        self._series.end_page(moment)
        scope = ScopeMetrics(self._scope, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, family: PageFamily, moment: int) -> Metric:
        return Metric(family.name, family.text, unit_of(family.name), self._points(family, moment))

    def _points(self, family: PageFamily, moment: int) -> Sum | Gauge | Histogram:
        if family.kind == "histogram":
            return Histogram(
                [self._histogram(family.name, one, moment) for one in family.histograms],
                AggregationTemporality.CUMULATIVE,
            )
        if family.kind == "gauge":
            return Gauge(
                [NumberDataPoint(dict(labels), 0, moment, one) for labels, one in family.numbers]
            )
        return Sum(
            [
                NumberDataPoint(dict(labels), self._since(family.name, labels, one), moment, one)
                for labels, one in family.numbers
            ],
            AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )

    def _since(self, name: str, labels: Attributes, *sums: float) -> int:
        return self._series.since((name, labels), sums)

    def _histogram(self, name: str, found: HistogramSample, moment: int) -> HistogramDataPoint:
        labels, bounds, counts, total = found
        return HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=self._since(name, labels, *counts),
            time_unix_nano=moment,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=bounds,
            min=_UNKNOWN,
            max=_UNKNOWN,
        )


def unit_of(name: str) -> str:
    """Return the unit of a metric by its name; empty for a number of things."""
    name = name.removesuffix("_total")
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
