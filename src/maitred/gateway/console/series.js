// The charts of the last hour, for the overview and for one queue.

import { chart } from "./charts.js";
import { h } from "./dom.js";
import { count, duration, rate } from "./format.js";

const per = (values, seconds) => (values ?? []).map((value) => (value === null ? null : value / seconds));

export function newest(values) {
  for (let at = (values?.length ?? 0) - 1; at >= 0; at--) if (values[at] !== null) return values[at];
  return null;
}

// Sums two series of numbers, point by point.
function plus(one, other) {
  return (one ?? []).map((value, at) => (value === null || other?.[at] === null || other?.[at] === undefined ? value : value + other[at]));
}

export function charts(series, hover, update) {
  if (!series) return h("div", { class: "charts loading", "aria-busy": "true" });
  const points = series.points;
  const common = { from: series.from, step: series.step_seconds, hover, update };
  const seconds = series.step_seconds;
  return h(
    "div",
    { class: "charts" },
    chart({
      ...common,
      key: "flow",
      title: "In and out, per second",
      show: rate,
      series: [
        { name: "in", kind: "one", values: per(points.added, seconds), filled: true },
        { name: "out", kind: "two", values: per(points.ended, seconds) },
      ],
    }),
    chart({
      ...common,
      key: "waits",
      title: "Wait until the start",
      show: duration,
      series: [
        { name: "p99", kind: "one", values: points.wait_p99 ?? [], filled: true },
        { name: "p50", kind: "two", values: points.wait_p50 ?? [] },
      ],
    }),
    chart({
      ...common,
      key: "failures",
      title: "Failures, per minute",
      show: rate,
      series: [
        { name: "failed attempts", kind: "bad", values: per(points.failed, seconds / 60), filled: true },
        { name: "dead letters", kind: "two", values: per(points.dead, seconds / 60) },
      ],
    }),
    chart({
      ...common,
      key: "slots",
      title: "Busy slots of all slots",
      show: count,
      series: [
        { name: "slots", kind: "quiet", values: plus(points.running, points.slots_free) },
        { name: "busy", kind: "one", values: points.running ?? [], filled: true },
      ],
    }),
  );
}
