// The charts of the last hour, for the overview and for one queue.

import { chart, roundUpSeconds } from "./charts.js";
import { h } from "./dom.js";
import { count, duration, rate } from "./format.js";

const per = (values, seconds) => (values ?? []).map((value) => (value === null ? null : value / seconds));

export function newest(values) {
  for (let at = (values?.length ?? 0) - 1; at >= 0; at--) if (values[at] !== null) return values[at];
  return null;
}

// A node that was started lately knows little of the last hour: the charts begin where it begins, and show so many steps at least.
const STEPS_LEAST = 30;

export function known(series) {
  const all = Object.values(series.points);
  const length = Math.max(0, ...all.map((values) => values.length));
  let first = 0;
  while (first < length && all.every((values) => values[first] === null || values[first] === undefined)) first++;
  const start = Math.max(0, Math.min(first, length - STEPS_LEAST));
  return {
    from: series.from + start * series.step_seconds,
    points: Object.fromEntries(Object.entries(series.points).map(([name, values]) => [name, values.slice(start)])),
  };
}

export function charts(series, hover, update) {
  if (!series) return h("div", { class: "charts loading", "aria-busy": "true" });
  const { from, points } = known(series);
  const common = { from, step: series.step_seconds, hover, update };
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
      round: roundUpSeconds,
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
      title: "Slots, busy and on offer",
      show: count,
      series: [
        { name: "on offer", kind: "two", values: points.slots_free ?? [] },
        { name: "busy", kind: "one", values: points.running ?? [], filled: true },
      ],
    }),
  );
}
