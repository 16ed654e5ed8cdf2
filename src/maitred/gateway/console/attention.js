// What needs attention: decided from the listed queues, without looking at the page or asking anything.

import { count, duration, plural } from "./format.js";
import { deadPlace, queuePlace, tasksPlace } from "./places.js";

// A queue that works well begins a task within seconds; a minute of waiting is worth a look.
export const OLD_SECONDS = 60;

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

// Return [{kind, name, text, to, action}], the most urgent first. `kind`: `bad` or `warn`.
export function attention(queues, groups) {
  const found = [];
  for (const row of queues) {
    const name = `${row.namespace}/${row.queue}`;
    // No age is known of a queue that nobody has used since its node started.
    const oldest = row.oldest_seconds > 0 ? `, the oldest for ${duration(row.oldest_seconds)}` : "";
    const waits = row.backlog > 0 ? `${plural(row.backlog, "task waits", "tasks wait")}${oldest}` : "";
    const to = queuePlace(row.namespace, row.queue);
    if (row.paused) {
      const by = row.paused.by ? ` by ${row.paused.by}` : "";
      const why = row.paused.reason ? `: ${row.paused.reason}` : "";
      found.push({ weight: 2, of: row.backlog, kind: "warn", what: "paused", name, to, text: `paused${by}${why}${waits ? `; ${waits}` : ""}` });
    } else if (row.backlog > 0 && !row.workers) {
      found.push({ weight: 4, of: row.backlog, kind: "bad", what: "not served", name, to, text: `no worker serves it; ${waits}` });
    } else if (row.oldest_seconds >= OLD_SECONDS) {
      found.push({ weight: 3, of: row.oldest_seconds, kind: "warn", what: "slow", name, to: tasksPlace(row.namespace, row.queue, { state: "waiting" }), text: waits });
    }
  }
  for (const group of groups) {
    const name = `${group.namespace}/${group.queue}`;
    const told = group.message ? `: ${group.message}${group.messages?.size > 1 ? " and others" : ""}` : "";
    found.push({
      weight: 3.5,
      of: group.count,
      kind: "bad",
      what: "dead letters",
      name,
      to: deadPlace(group.namespace, group.queue),
      text: `${count(group.count)} × ${group.error || group.reason || "unknown error"}${told}`,
    });
  }
  found.sort((one, other) => other.weight - one.weight || other.of - one.of);
  return { items: found.slice(0, SHOWN_MAX), more: Math.max(0, found.length - SHOWN_MAX) };
}
