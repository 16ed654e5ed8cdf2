"""Metrics in OpenTelemetry's form, made from a page."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource

from maitred.metrics import families
from maitred.metrics.exposition import Samples, page
from maitred.telemetry.metric_data import MetricPages, unit_of


def test_kinds_units_and_starts() -> None:
    pages = MetricPages(Resource({}), began=10)
    samples = Samples(process="shard-0")
    samples.add(families.PROCESS_CPU, 1.25)
    samples.add(families.PROCESS_MEMORY, 2**40)
    samples.buckets(families.LOOP_LAG, (0.1, 0.5), (1, 0, 2), 3.0)
    text = page(families.PROCESSES, [samples.lines])
    (group,) = encode_metrics(pages.data(text, 20)).resource_metrics
    (scope,) = group.scope_metrics
    assert scope.scope.name == "maitred"
    memory, cpu, lag = scope.metrics
    assert (memory.unit, cpu.unit, lag.unit) == ("By", "s", "s")
    assert memory.gauge.data_points[0].as_int == 2**40
    assert cpu.sum.is_monotonic
    (point,) = cpu.sum.data_points
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (1.25, 10, 20)
    (histogram,) = lag.histogram.data_points
    assert list(histogram.bucket_counts) == [1, 0, 2]
    assert list(histogram.explicit_bounds) == [0.1, 0.5]
    assert (histogram.count, histogram.sum) == (3, 3.0)
    assert not histogram.HasField("min")
    assert not histogram.HasField("max")
    again = encode_metrics(pages.data(text.replace(" 1.25", " 0.5"), 30))
    points = again.resource_metrics[0].scope_metrics[0].metrics[1].sum.data_points
    assert points[0].start_time_unix_nano == 20


def test_every_metric_has_the_unit_of_its_name() -> None:
    units = {one.name: unit_of(one.name) for one in families.NODE}
    assert units["maitred_store_commit_seconds"] == "s"
    assert units["maitred_process_memory_bytes"] == "By"
    assert units["maitred_partition_tasks_added_per_second"] == ""
    assert units["maitred_queue_tasks_added_total"] == ""
