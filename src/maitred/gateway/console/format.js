// Numbers, durations and moments as people read them.

import { stringify } from "./exact.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const digitsOf = new Intl.NumberFormat("en", { maximumFractionDigits: 20 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

export const NOTHING = "–";

export function count(value) {
  return value === null || value === undefined ? NOTHING : whole.format(value);
}

// A number that somebody has set, with all its digits.
export function exactly(value) {
  return digitsOf.format(value);
}

// 1,234 stays; 12,345 becomes 12.3k: for places where a glance has to do.
export function short(value) {
  if (value === null || value === undefined) return NOTHING;
  if (value < 10_000) return whole.format(value);
  if (value < 999_500) return `${digits(value / 1_000)}k`;
  return `${digits(value / 1_000_000)}M`;
}

export function rate(value) {
  if (value === null || value === undefined) return NOTHING;
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  return value < 100 ? value.toFixed(1) : short(value);
}

export function share(value) {
  return value === null || value === undefined ? NOTHING : `${Math.round(value * 100)} %`;
}

function digits(value) {
  return value < 100 ? value.toFixed(1) : value.toFixed(0);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds <= 0) return "0 s";
  // Rounded, it would be 1000 µs.
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${seconds < 0.0095 ? (seconds * 1e3).toFixed(1) : Math.round(seconds * 1e3)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3_600) return two(seconds, 60, "min", 1, "s");
  if (seconds < 86_400) return two(seconds, 3_600, "h", 60, "min");
  return two(seconds, 86_400, "d", 3_600, "h");
}

// A duration between two moments that are known to the millisecond.
export function between(start, end) {
  const seconds = Math.round(Math.max(0, end - start) * 1_000) / 1_000;
  return seconds === 0 ? "<1 ms" : duration(seconds);
}

function two(seconds, large, largeName, small, smallName) {
  const first = Math.floor(seconds / large);
  const second = Math.floor((seconds % large) / small);
  return second ? `${first} ${largeName} ${second} ${smallName}` : `${first} ${largeName}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  if (value < 1_024) return `${value} B`;
  if (value < 1_048_576) return `${digits(value / 1_024)} KiB`;
  if (value < 1_073_741_824) return `${digits(value / 1_048_576)} MiB`;
  return `${digits(value / 1_073_741_824)} GiB`;
}

// The clock of the gateway, as far as this browser knows it: ages must not depend on a clock that is wrong here.
let ahead = 0;

export function setClock(serverMilliseconds) {
  if (Number.isFinite(serverMilliseconds)) ahead = serverMilliseconds - Date.now();
}

export function now() {
  return (Date.now() + ahead) / 1_000;
}

// A duration in one unit: for ages, which a list has many of.
export function age(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

export function ago(unix) {
  return unix ? `${age(Math.max(0, now() - unix))} ago` : NOTHING;
}

export function until(unix) {
  if (!unix) return NOTHING;
  const left = unix - now();
  return left <= 0 ? "now" : `in ${age(left + 1)}`;
}

export function time(unix) {
  if (!unix) return NOTHING;
  const date = new Date(unix * 1_000);
  return Math.abs(now() - unix) < 43_200 ? clock.format(date) : full.format(date);
}

export function moment(unix) {
  return unix ? full.format(new Date(unix * 1_000)) : NOTHING;
}

export function hour(unix) {
  return minutes.format(new Date(unix * 1_000));
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// A value of JSON on few lines, in the order in which it came.
export function json(value, indent = 2) {
  return value === undefined ? "" : stringify(value, indent);
}

const INLINE = 160;

// The same in one line, cut where a table has no more room.
export function inline(value) {
  if (value === null || value === undefined) return "";
  const text = stringify(value);
  return text.length > INLINE ? `${text.slice(0, INLINE)}…` : text;
}
