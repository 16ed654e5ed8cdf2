// Charts of the last hour, drawn as SVG: lines over time, with a crosshair that tells the values of a moment.

import { h } from "./dom.js";
import { hour, time } from "./format.js";

const WIDTH = 600;

// Gaps of the grid: enough to read a value, few enough to stay in the background.
const GRID_LINES = 2;

// The grid has a line at the half, which is to be as round.
const nice = [1, 2, 4, 6, 8, 10];

// The next round number above a value, so that the scale changes seldom.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return nice.find((one) => one * power >= value) * power;
}

// The same for seconds, which people read in minutes, hours and days.
export function roundUpSeconds(value) {
  const unit = [86_400, 3_600, 60].find((one) => value > one) ?? 1;
  return roundUp(value / unit) * unit;
}

// The same for bytes, in steps of KiB and MiB.
export function roundUpBytes(value) {
  const unit = 1_024 ** Math.floor(Math.log2(Math.max(1, value)) / 10);
  return roundUp(value / unit) * unit;
}

function line(values, most, height) {
  const step = WIDTH / Math.max(1, values.length - 1);
  let text = "";
  let open = false;
  for (let at = 0; at < values.length; at++) {
    const value = values[at];
    if (value === null || value === undefined) {
      open = false;
      continue;
    }
    const y = height - (Math.min(value, most) / most) * height;
    text += `${open ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
    // A point without neighbours is a dot.
    if (!open && (values[at + 1] === null || values[at + 1] === undefined)) text += "h0";
    open = true;
  }
  return text;
}

function area(values, most, height) {
  const step = WIDTH / Math.max(1, values.length - 1);
  let text = "";
  let start = -1;
  for (let at = 0; at <= values.length; at++) {
    const value = at < values.length ? values[at] : null;
    if (value === null || value === undefined) {
      if (start >= 0) text += `L${((at - 1) * step).toFixed(1)} ${height}Z`;
      start = -1;
      continue;
    }
    const x = (at * step).toFixed(1);
    const y = (height - (Math.min(value, most) / most) * height).toFixed(1);
    if (start < 0) {
      text += `M${x} ${height}L${x} ${y}`;
      start = at;
    } else {
      text += `L${x} ${y}`;
    }
  }
  return text;
}

// What is older than so many steps is not what is now: waits are not known while no task begins.
const RECENT_STEPS = 6;

// The last value that is known, if it is recent.
export function recent(values) {
  return values?.slice(-RECENT_STEPS).findLast((value) => value !== null && value !== undefined) ?? null;
}

// Describe a chart. `series`: [{name, values, kind, filled}]; `from` and `step`: the moments, in seconds; `show(value)`: text.
// `hover` is an object of the view that keeps the place of the pointer; `update` draws anew.
export function chart({ key, title, series, from, step, show, hover, update, height = 120, round = roundUp }) {
  const length = Math.max(0, ...series.map((one) => one.values.length));
  const peak = Math.max(0, ...series.flatMap((one) => one.values.filter((value) => value !== null)));
  const top = round(peak);
  const at = hover.at !== null && hover.at !== undefined && hover.at < length ? hover.at : null;
  const described = series.map((one) => `${one.name} ${show(recent(one.values))} now, ${show(Math.max(0, ...one.values.filter((value) => value !== null)))} at most`).join("; ");
  // Of whole numbers, the half of 1 would be 1 as well.
  const label = (index) => (index && show(top * (1 - index / GRID_LINES)) === show(top) ? "" : show(top * (1 - index / GRID_LINES)));
  const ticks = [];
  const end = from + step * (length - 1);
  const span = Math.max(1, end - from);
  const tickEvery = span > 2_400 ? 900 : span > 900 ? 300 : 120;
  for (let moment = Math.ceil(from / tickEvery) * tickEvery; moment <= end; moment += tickEvery) {
    // A label at the edge would be cut.
    if (moment - from > span * 0.06 && end - moment > span * 0.06) ticks.push(moment);
  }
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = Math.round(((event.clientX - box.left) / box.width) * (length - 1));
    hover.at = Math.max(0, Math.min(length - 1, place));
    update();
  };
  return h(
    "figure",
    { key, class: "chart" },
    h(
      "figcaption",
      {},
      h("h3", {}, title),
      h(
        "span",
        { class: "legend" },
        series.map((one) =>
          h("span", { key: one.name, class: `series ${one.kind}` }, h("i", { "aria-hidden": "true" }), one.name, " ", h("b", {}, show(at === null ? recent(one.values) : one.values[at]))),
        ),
      ),
    ),
    h(
      "div",
      {
        class: "plot",
        style: { height: `${height}px` },
        onpointermove: point,
        onpointerdown: point,
        onpointerleave: () => {
          hover.at = null;
          update();
        },
      },
      h(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, the last hour: ${described}` },
        Array.from({ length: GRID_LINES }, (_, index) => {
          const y = (height / GRID_LINES) * index;
          return h("line", { key: `g${index}`, class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y });
        }),
        series.filter((one) => one.filled).map((one) => h("path", { key: `a${one.name}`, class: `area ${one.kind}`, d: area(one.values, top, height) })),
        series.map((one) => h("path", { key: `l${one.name}`, class: `line ${one.kind}`, d: line(one.values, top, height) })),
        at === null ? null : h("line", { key: "cross", class: "cross", x1: (WIDTH / Math.max(1, length - 1)) * at, x2: (WIDTH / Math.max(1, length - 1)) * at, y1: 0, y2: height }),
      ),
      Array.from({ length: GRID_LINES }, (_, index) =>
        h("span", { key: `y${index}`, class: "y", "aria-hidden": "true", style: { top: `${(100 / GRID_LINES) * index}%` } }, label(index)),
      ),
      at === null ? null : h("span", { key: "moment", class: "moment", style: { left: `${(at / Math.max(1, length - 1)) * 100}%` } }, time(from + step * at)),
    ),
    h(
      "div",
      { class: "x", "aria-hidden": "true" },
      ticks.map((moment) => h("span", { key: moment, style: { left: `${((moment - from) / span) * 100}%` } }, hour(moment))),
    ),
  );
}

// A line without a scale, for a row of a table. `most` is the value at the top.
export function sparkline(values, label, { width = 90, height = 20, most = 1 } = {}) {
  const top = Math.max(most, ...values.filter((value) => value !== null));
  const step = width / Math.max(1, values.length - 1);
  const points = values.flatMap((value, at) => (value === null ? [] : [`${(at * step).toFixed(1)},${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`]));
  return h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, h("polyline", { points: points.join(" ") }));
}
