// What operators do to tasks: which action fits which state, the question before it, the request, and what came of it.

import { path, post } from "./api.js";
import { count, plural } from "./format.js";
import { act, confirm, inPortions, say } from "./parts.js";

export const ACTIONS = {
  cancel: { label: "Cancel", verb: "cancelled", kind: "danger", states: ["running", "waiting", "delayed"], text: "Waiting tasks are not run; those that run are told to stop." },
  "run-now": { label: "Run now", verb: "due at once", kind: "primary", states: ["delayed"], text: "The delay, or the pause before the next attempt, ends now." },
  retry: { label: "Retry", verb: "tried again", kind: "primary", states: ["dead"], text: "The task is tried again, with all its attempts." },
  drop: { label: "Drop", verb: "dropped", kind: "danger", states: ["dead"], text: "The dead letter is deleted for good." },
  again: { label: "Run again", verb: "added again", kind: "primary", states: ["dead", "done", "cancelled", "expired", "ended"], text: "A new task is added with the same arguments and options." },
};

// What `left` of an answer says, in a sentence.
const WHY = {
  over: "it is over",
  running: "it runs",
  waiting: "it waits for a worker already",
  "not-delayed": "it is not delayed",
  "not-dead": "it is no dead letter",
  forgotten: "it is no longer kept",
  unknown: "it does not exist",
};

export const why = (word) => WHY[word] ?? word;

export function actionsFor(state) {
  return Object.entries(ACTIONS).filter(([, one]) => one.states.includes(state));
}

const where = (namespace, queue) => path([namespace, "queues", queue, "tasks", "actions"]);

// Ask, and do it to these tasks ("partition/sequence"). Returns the answer, or null.
export async function change(namespace, queue, action, ids, { ask = true } = {}) {
  const one = ACTIONS[action];
  let reason = "";
  if (ask) {
    const values = await confirm({
      title: `${one.label}: ${ids.length === 1 ? `task ${namespace}/${queue}/${ids[0]}` : plural(ids.length, "task")}?`,
      text: one.text,
      action: one.label,
      kind: one.kind,
    });
    if (!values) return null;
    reason = values.reason;
  }
  const answer = await act(() => post(where(namespace, queue), { action, ids, reason }));
  if (answer === null) return null;
  const left = Object.entries(answer.left ?? {});
  if (ids.length === 1 && left.length) say(`Not ${one.verb}: ${why(left[0][1])}.`, "bad");
  else say(`${plural(answer.done, "task")} ${one.verb}${left.length ? `, ${count(left.length)} left alone: ${why(left[0][1])}` : ""}.`, left.length ? "warn" : "good");
  return answer;
}

// Do it to all tasks of a state that pass a filter: first count them without a change, then ask, then go on until all are done.
export async function changeAll(namespace, queue, action, state, filter, described) {
  const one = ACTIONS[action];
  const to = where(namespace, queue);
  let matched = 0;
  let isExact = true;
  const dry = await act(async () => {
    let cursor = null;
    const began = performance.now();
    do {
      const answer = await post(to, { action, state, filter, dry_run: true, reason: "", cursor });
      matched += answer.matched ?? 0;
      cursor = answer.cursor ?? null;
    } while (cursor !== null && performance.now() - began < 5_000);
    isExact = cursor === null;
    return true;
  });
  if (dry === null) return false;
  if (matched === 0 && isExact) {
    say("No task matches.");
    return false;
  }
  const number = `${isExact ? "" : "at least "}${plural(matched, "task")}`;
  const values = await confirm({
    title: `${one.label}: ${number}?`,
    text: `${described}. ${one.text}`,
    action: `${one.label} ${isExact ? count(matched) : "all"}`,
    kind: one.kind,
  });
  if (!values) return false;
  await inPortions(`${one.label}: ${number}`, async (cursor) => {
    const answer = await post(to, { action, state, filter, dry_run: false, reason: values.reason, cursor });
    return { ...answer, left: Object.fromEntries(Object.entries(answer.left ?? {}).map(([id, word]) => [id, why(word)])) };
  }, { verb: one.verb });
  return true;
}

