// From the events of a task to the bars of its waterfall: a wait and a run for each attempt. Decides alone, asks nothing.

const ENDS = { failed: "bad", "timed-out": "bad", lost: "bad", returned: "quiet", stopped: "warn", done: "good", cancelled: "warn", expired: "warn", dead: "bad" };

const TEXTS = { failed: "failed after", "timed-out": "timed out after", lost: "worker lost after", returned: "given back after", stopped: "stopped after", done: "done in", cancelled: "cancelled after", dead: "failed after" };

// Planned moments further away than this many times the past are drawn at the edge, or the past would be a dot.
const FUTURE_SHARE = 0.6;

// Return {rows: [{key, label, sub, parts: [{kind, text, start, end}]}], from, to}; moments are seconds since 1970.
export function spans(events, task, now) {
  const past = events.filter((one) => one.at <= now);
  const from = Math.min(task.added_at || Infinity, ...events.map((one) => one.at));
  const rows = [];
  let waitingSince = from;
  let waits = "waited";
  let row = null;
  let attempts = 0;
  for (const event of past) {
    if (event.what === "started") {
      attempts = event.attempt || attempts + 1;
      row = { key: `a${rows.length}`, label: `attempt ${attempts}`, sub: event.worker ?? "", parts: [], startedAt: event.at };
      if (event.at > waitingSince) row.parts.push({ kind: "wait", text: waits, start: waitingSince, end: event.at });
      rows.push(row);
    } else if (event.what in ENDS && row !== null && row.startedAt !== null) {
      row.parts.push({ kind: ENDS[event.what], text: TEXTS[event.what] ?? event.what, start: row.startedAt, end: event.at });
      row.startedAt = null;
      waitingSince = event.at;
      waits = event.what === "returned" || event.what === "lost" ? "waited" : "waited for the next attempt";
    } else if (event.what in ENDS && row === null) {
      rows.push({ key: "never", label: "never begun", sub: "", parts: [{ kind: "wait", text: "waited", start: waitingSince, end: event.at }] });
      row = { startedAt: null };
    }
  }
  let to = Math.max(from, ...past.map((one) => one.at));
  if (row !== null && row.startedAt) {
    row.parts.push({ kind: "running", text: "running for", start: row.startedAt, end: Math.max(now, row.startedAt) });
    to = Math.max(to, now);
  } else if (task.state === "waiting" || task.state === "delayed") {
    to = Math.max(to, now);
    const next = { key: "next", label: rows.length ? `attempt ${attempts + 1}` : "not begun", sub: "", parts: [{ kind: "wait", text: waits, start: waitingSince, end: now }] };
    const due = task.state === "delayed" ? task.due_at : 0;
    if (due > now) {
      const edge = Math.min(due, now + Math.max(1, (now - from) * FUTURE_SHARE));
      next.parts.push({ kind: "planned", text: "due in", start: now, end: edge });
      to = Math.max(to, edge);
    }
    rows.push(next);
  }
  if (to - from < 0.000_001) to = from + 0.001;
  return { rows, from, to };
}
