// What needs attention, as the gateway decides it, made ready to be shown; and groups of dead letters put together.

import { deadPlace, queuePlace, tasksPlace } from "./places.js";

// The list is for a glance; the pages of queues and dead letters have all.
const SHOWN_MAX = 5;

// Join the groups of one error: of several pages of a scan, and those whose messages differ.
export function joined(groups) {
  const found = new Map();
  for (const group of groups) {
    const key = JSON.stringify([group.error, group.reason]);
    const before = found.get(key);
    if (before === undefined) {
      found.set(key, { ...group, messages: new Set([group.message]) });
      continue;
    }
    before.messages.add(group.message);
    before.count += group.count;
    if (group.newest_at > before.newest_at) Object.assign(before, { newest_at: group.newest_at, example: group.example, message: group.message });
  }
  return [...found.values()].sort((one, other) => other.count - one.count);
}

const BADGES = { unserved: ["not served", "bad"], retrying: ["failing", "bad"], behind: ["behind", "warn"], paused: ["paused", "warn"] };

// Return {items: [{key, badge, kind, name, text, remedy, to}], more} of problems as the gateway decides and sorts them.
export function attention(problems) {
  const items = problems.slice(0, SHOWN_MAX).map(({ kind, namespace, queue, what, why, remedy }) => {
    const [badge, colour] = BADGES[kind] ?? ["", "bad"];
    const [first, second] = kind === "failing" || kind === "behind" ? [what, why] : [why, what];
    const to =
      kind === "failing" ? deadPlace(namespace, queue)
      : kind === "retrying" ? tasksPlace(namespace, queue, { state: "delayed" })
      : kind === "behind" ? tasksPlace(namespace, queue, { state: "waiting" })
      : queuePlace(namespace, queue);
    const text = [first, second].filter(Boolean).join("; ");
    return { key: `${kind} ${namespace}/${queue}`, badge, kind: colour, name: `${namespace}/${queue}`, text, remedy, to };
  });
  return { items, more: Math.max(0, problems.length - SHOWN_MAX) };
}
