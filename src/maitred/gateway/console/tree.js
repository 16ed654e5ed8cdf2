// The tree of a queue's partitions, drawn: a circle each, as large as its backlog; a line to its parent, as thick as what goes up.

import { h } from "./dom.js";
import { count, rate } from "./format.js";

const WIDTH = 1_000;
const LEVEL = 74;
const SMALLEST = 5;
const LARGEST = 24;

// Beyond this, circles would be dots; the table below has all of them.
const DRAWN_MAX = 441;

// Return the partitions by depth, each level in the order of its parents.
export function levels(partitions) {
  const children = new Map();
  const known = new Set(partitions.map((one) => one.partition));
  const roots = [];
  for (const one of partitions) {
    const parent = one.parent ?? null;
    if (parent === null || parent === one.partition || !known.has(parent)) roots.push(one);
    else children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  const found = [];
  let level = roots;
  while (level.length && found.length < 10) {
    found.push(level);
    level = level.flatMap((one) => children.get(one.partition) ?? []);
  }
  return found;
}

// The partitions as rows of a tree: parents before their children, with the depth.
export function inOrder(partitions) {
  const children = new Map();
  const known = new Set(partitions.map((one) => one.partition));
  const roots = [];
  for (const one of partitions) {
    const parent = one.parent ?? null;
    if (parent === null || parent === one.partition || !known.has(parent)) roots.push(one);
    else children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  const rows = [];
  const visit = (one, depth) => {
    rows.push({ ...one, depth });
    for (const child of children.get(one.partition) ?? []) visit(child, depth + 1);
  };
  for (const root of roots) visit(root, 0);
  return rows;
}

export function tree(partitions, rates) {
  const rows = levels(partitions);
  if (partitions.length < 2 || partitions.length > DRAWN_MAX) return null;
  const height = rows.length * LEVEL;
  const most = Math.max(1, ...partitions.map((one) => one.backlog ?? 0));
  const places = new Map();
  rows.forEach((level, depth) => level.forEach((one, at) => places.set(one.partition, { x: ((at + 0.5) / level.length) * WIDTH, y: (depth + 0.5) * LEVEL })));
  const widest = Math.max(...rows.map((level) => level.length));
  const largest = Math.min(LARGEST, WIDTH / widest / 2.4);
  const radius = (one) => Math.max(Math.min(SMALLEST, largest), Math.sqrt((one.backlog ?? 0) / most) * largest);
  const links = [];
  for (const one of partitions) {
    const end = places.get(one.parent);
    const start = places.get(one.partition);
    if (!end || !start || one.parent === one.partition) continue;
    const flow = (rates.get(one.partition)?.tasks ?? 0) + (rates.get(one.partition)?.offers ?? 0);
    links.push(
      h("path", {
        key: `l${one.partition}`,
        class: flow > 0 ? "link flows" : "link",
        d: `M${start.x} ${start.y}C${start.x} ${(start.y + end.y) / 2} ${end.x} ${(start.y + end.y) / 2} ${end.x} ${end.y}`,
        "stroke-width": flow > 0 ? Math.min(6, 1.5 + Math.log10(1 + flow)).toFixed(1) : 1,
      }),
    );
  }
  return h(
    "svg",
    { class: "tree", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `The tree of ${partitions.length} partitions in ${rows.length} levels; the table has its numbers` },
    links,
    partitions.map((one) => {
      const at = places.get(one.partition);
      if (!at) return null;
      const size = radius(one);
      const flow = rates.get(one.partition);
      return h(
        "g",
        { key: `p${one.partition}`, class: `node ${one.state ?? ""} ${one.offers > 0 ? "offers" : ""}` },
        h("circle", { cx: at.x, cy: at.y, r: size }),
        size > 9 ? h("text", { x: at.x, y: at.y, "text-anchor": "middle", "dominant-baseline": "central" }, one.partition) : null,
        h("title", {}, `partition ${one.partition}: ${count(one.backlog)} wait, ${count(one.running)} run, ${count(one.offers)} offers; ${rate(flow?.tasks ?? 0)} tasks/s and ${rate(flow?.offers ?? 0)} offers/s go up`),
      );
    }),
  );
}
