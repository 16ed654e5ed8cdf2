// The tasks of a queue in one state, searched by worker, error, user, time and argument, with suggestions.

import { actionsFor, change, changeAll } from "./actions.js";
import { get, path } from "./api.js";
import { h } from "./dom.js";
import { parse } from "./exact.js";
import { age, ago, bytes, count, inline, moment, now, plural, until } from "./format.js";
import { Live } from "./live.js";
import { Suggesting, badge, button, empty, link, problem, select, unreachable } from "./parts.js";
import { go, note, numberOf, place, queueNames, queuePlace, taskPlace, taskPlaceById, tasksPlace } from "./places.js";
import { Table } from "./table.js";

const PAGE = 100;

// Suggestions come from so many tasks and workers; others can be typed.
const SUGGESTED_MAX = 8;

export const STATES = [
  ["running", "running"],
  ["waiting", "waiting"],
  ["delayed", "delayed"],
  ["dead", "dead"],
  ["ended", "ended"],
];

const SINCE = [
  ["", "any time"],
  ["600", "10 minutes"],
  ["3600", "hour"],
  ["86400", "day"],
  ["604800", "week"],
];

const QUALIFIERS = {
  worker: "the worker that has the task, or had it last",
  error: "a part of the error",
  by: "the user who added it",
  argument: "an argument, as in argument:city=\"Ghent\"",
};

const KINDS = { running: "good", waiting: "", delayed: "", dead: "bad", done: "good", cancelled: "warn", expired: "warn" };

export const stateBadge = (row) => badge(row.cancelling && row.state === "running" ? "cancelling" : row.state, row.cancelling ? "warn" : KINDS[row.state]);

// A value as somebody types it: JSON, or else the text itself.
function typedValue(text) {
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}

// The table of one queue's tasks with its filters; a page of its own, or a part of the queue's.
export class TaskList {
  constructor(app, namespace, queue, query, changed = () => {}) {
    Object.assign(this, { app, namespace, queue, changed });
    const { state = "waiting", since = "", worker = "", error = "", by = "", argument = "" } = query;
    Object.assign(this, { state, since, worker, error, by, argument });
    this.reveal = query.reveal === "true" && app.may(namespace, "reveal");
    this.sinceAt = now();
    this.handlers = null;
    this.input = new Suggesting({
      label: "Filter tasks: worker, error, by, argument",
      placeholder: "Filter: worker, error, by, argument…",
      suggest: (text) => this.suggest(text),
      chosen: (text) => this.filterBy(text),
      update: app.update,
    });
    this.table = new Table({
      label: `Tasks of ${namespace}/${queue}`,
      columns: this.columns(),
      key: (row) => row.id,
      path: (cursor) => path([namespace, "queues", queue, "tasks"], { ...this.filter(), reveal: this.reveal ? "true" : "", most: PAGE, cursor }),
      pick: (answer) => answer.tasks,
      update: app.update,
      open: (row) => go(taskPlace(row)),
      selectable: true,
      nothing: () => empty(this.filtered ? "No task is like that." : `No task is ${this.state === "ended" ? "over and still known" : this.state}.`),
    });
  }

  get filtered() {
    return Boolean(this.worker || this.error || this.by || this.argument || this.since);
  }

  close() {
    this.table.close();
  }

  filter() {
    return {
      state: this.state,
      worker: this.worker,
      error: this.error,
      by: this.by,
      argument: this.argument,
      added_after: this.since ? Math.round(this.sinceAt - Number(this.since)) : "",
    };
  }

  // The same as the body of a bulk action has it.
  bodyFilter() {
    const { worker, error, by } = this;
    const found = { worker, error, by, added_after: this.since ? this.sinceAt - Number(this.since) : 0, added_before: 0 };
    if (this.argument) {
      const at = this.argument.indexOf("=");
      found.argument = { name: this.argument.slice(0, at), value: parse(this.argument.slice(at + 1)) };
    }
    return found;
  }

  get address() {
    const { state, since, worker, error, by, argument, reveal } = this;
    return { state, since, worker, error, by, argument, reveal: reveal ? "true" : "" };
  }

  set(changes) {
    Object.assign(this, changes);
    this.sinceAt = now();
    this.table.columns = this.columns();
    this.table.restart();
    this.changed();
  }

  filterBy(text) {
    const trimmed = text.trim();
    if (!trimmed) return;
    const id = taskPlaceById(trimmed) ?? (/^\d+\/\d+$/.test(trimmed) ? place(["tasks", this.namespace, this.queue, ...trimmed.split("/")]) : null);
    if (id !== null) {
      go(id);
      return;
    }
    const at = trimmed.indexOf(":");
    const name = at > 0 ? trimmed.slice(0, at) : "";
    if (!(name in QUALIFIERS)) {
      this.input.value = "";
      this.set({ error: trimmed });
      return;
    }
    const value = trimmed.slice(at + 1);
    if (!value || (name === "argument" && !value.includes("="))) {
      this.input.value = name === "argument" && value ? `${trimmed}=` : trimmed;
      this.input.open = true;
      this.input.ask();
      return;
    }
    this.input.value = "";
    if (name === "argument") {
      const equals = value.indexOf("=");
      this.set({ argument: `${value.slice(0, equals)}=${typedValue(value.slice(equals + 1))}` });
    } else {
      this.set({ [name]: value });
    }
  }

  async suggest(text) {
    const at = text.indexOf(":");
    const name = at > 0 ? text.slice(0, at) : "";
    if (!(name in QUALIFIERS)) {
      const hints = Object.entries(QUALIFIERS)
        .filter(([one]) => one.startsWith(text) && (one !== "argument" || this.app.may(this.namespace, "reveal")))
        .map(([one, hint]) => ({ value: `${one}:`, hint }));
      return text && !hints.length ? ["error", "worker", "by"].map((one) => ({ value: `${one}:${text}`, hint: QUALIFIERS[one] })) : hints;
    }
    const typed = text.slice(at + 1);
    const values = await this.known(name, typed);
    return values
      .filter((value) => value && value.toLowerCase().includes(typed.toLowerCase()))
      .slice(0, SUGGESTED_MAX)
      .map((value) => ({ value: `${name}:${value}` }));
  }

  async known(name, typed) {
    const rows = this.table.rows;
    const seen = (values) => [...new Set(values)];
    if (name === "by") return seen(rows.map((row) => (row.by ?? "").split("@")[0]));
    if (name === "error") {
      const errors = seen(rows.map((row) => row.error));
      if (errors.some(Boolean)) return errors;
      const answer = await get(path([this.namespace, "queues", this.queue, "dead-groups"]));
      return seen(answer.groups.map((group) => group.error));
    }
    if (name === "worker") {
      const answer = await get(path(["workers"], { namespace: this.namespace, queue: this.queue, match: typed, most: SUGGESTED_MAX }));
      return seen([...answer.workers.map((row) => row.worker), ...rows.map((row) => row.worker)]);
    }
    if (typed.includes("=")) return [];
    this.handlers ??= (await get(path([this.namespace, "queues", this.queue, "handlers"]))).functions;
    return seen(this.handlers.flatMap((one) => one.parameters.filter((parameter) => !parameter.hidden).map((parameter) => `${parameter.name}=`)));
  }

  columns() {
    const whens = {
      running: ["since", (row) => age(Math.max(0, now() - row.started_at)), (row) => row.started_at],
      waiting: ["waits", (row) => age(Math.max(0, now() - (row.due_at || row.added_at))), (row) => row.added_at],
      delayed: ["due", (row) => until(row.due_at), (row) => row.due_at],
      dead: ["died", (row) => ago(row.ended_at), (row) => row.ended_at],
      ended: ["ended", (row) => ago(row.ended_at), (row) => row.ended_at],
    };
    const [label, show, at] = whens[this.state] ?? whens.ended;
    return [
      { name: "task", label: "task", class: "main code", cell: (row) => link(taskPlace(row), numberOf(row)) },
      { name: "state", label: "state", class: this.state === "ended" ? "" : "mid", cell: (row) => stateBadge(row) },
      { name: "when", label, class: "number", cell: (row) => h("span", { title: moment(at(row)) }, show(row)) },
      { name: "attempts", label: "attempts", class: "number mid", cell: (row) => count(row.attempts ?? 0) },
      { name: "worker", label: "worker", class: "mid", cell: (row) => row.worker ?? "" },
      { name: "error", label: "error", class: this.state === "dead" || this.state === "delayed" ? "stretch" : "mid stretch", cell: (row) => (row.error ? [h("span", { class: "bad" }, row.error), row.message ? h("span", { class: "dim" }, ` ${row.message}`) : null] : "") },
      ...(this.reveal ? [{ name: "arguments", label: "arguments", class: "code stretch low", cell: (row) => (row.withheld ? h("span", { class: "dim" }, row.withheld) : inline(row.arguments)) }] : []),
      { name: "by", label: "added by", class: "low", cell: (row) => row.by ?? "" },
      { name: "added", label: "added", class: "number low", cell: (row) => h("span", { title: moment(row.added_at) }, ago(row.added_at)) },
      { name: "size", label: "size", class: "number low", cell: (row) => bytes(row.payload_bytes) },
    ];
  }

  described() {
    const parts = [`All ${this.state} tasks of ${this.namespace}/${this.queue}`];
    for (const name of ["worker", "error", "by", "argument"]) if (this[name]) parts.push(`${name} ${this[name]}`);
    if (this.since) parts.push(`added in the last ${SINCE.find(([one]) => one === this.since)[1]}`);
    return parts.join(", ");
  }

  async bulk(action) {
    const ids = [...this.table.selected.values()].map(numberOf);
    if (ids.length) {
      if (await change(this.namespace, this.queue, action, ids)) this.table.selected.clear();
    } else {
      await changeAll(this.namespace, this.queue, action, this.state, this.bodyFilter(), this.described());
    }
    this.table.refresh();
    this.app.update();
  }

  view() {
    const answer = this.table.answer;
    const selected = this.table.selected.size;
    const denied = this.app.denied(this.namespace, "operate");
    const cannotReveal = this.app.denied(this.namespace, "reveal");
    return [
      h(
        "div",
        { class: "filters" },
        h(
          "div",
          { class: "tabs", role: "group", "aria-label": "State" },
          STATES.map(([state, label]) => button(label, { key: state, kind: "tab", pressed: this.state === state, onclick: () => this.set({ state }) })),
        ),
        this.input.view(),
        select(this.since, SINCE.map(([value, label]) => [value, value ? `added in the last ${label}` : "added at any time"]), (since) => this.set({ since }), "Added"),
        button("Show private data", {
          pressed: this.reveal,
          denied: cannotReveal,
          kind: "toggle",
          title: "Arguments and messages of errors.",
          onclick: () => this.set({ reveal: !this.reveal }),
        }),
      ),
      h(
        "div",
        { class: "chips" },
        Object.keys(QUALIFIERS)
          .filter((name) => this[name])
          .map((name) =>
            h(
              "button",
              { key: name, type: "button", class: "chip", title: "Remove this filter", onclick: () => this.set({ [name]: "" }) },
              h("span", {}, `${name}: ${this[name]}`),
              h("span", { "aria-hidden": "true" }, " ×"),
            ),
          ),
        h("span", { class: "aside", role: "status" }, selected ? `${count(selected)} selected` : this.table.isComplete ? plural(this.table.rows.length, "task") : this.table.rows.length ? `${count(this.table.rows.length)} loaded` : answer?.more ? "Still looking: go on by scrolling." : ""),
        actionsFor(this.state).map(([action, one]) =>
          button(selected ? `${one.label} selected` : `${one.label} all${this.filtered ? " that match" : ""}…`, { key: action, kind: "small", denied, onclick: () => this.bulk(action) }),
        ),
      ),
      unreachable(answer?.unreachable),
      this.table.view(),
    ];
  }
}

// Queues to choose from: those with the most waiting tasks.
const LISTED = 20;

export class Tasks {
  constructor(app, namespace, queue, query) {
    Object.assign(this, { app, namespace, queue });
    this.title = queue === undefined ? "Tasks" : `Tasks of ${namespace}/${queue}`;
    this.fill = true;
    if (queue !== undefined) {
      this.list = new TaskList(app, namespace, queue, query, () => note(tasksPlace(namespace, queue, this.list.address)));
    } else {
      this.error = null;
      this.answer = null;
      const got = (answer, error) => {
        this.answer = answer;
        this.error = error;
        app.update();
      };
      this.live = new Live((_index, data) => got(data, null), (_index, error) => got(this.answer, error));
      this.live.watch([path(["queues"], { namespace: app.namespace, sort: "backlog", most: LISTED })]);
    }
    this.picker = new Suggesting({
      label: "Queue",
      placeholder: "Queue…",
      suggest: (text) => app.suggestQueues(text),
      chosen: (text) => {
        const id = taskPlaceById(text);
        const names = queueNames(text);
        if (id) go(id);
        else if (names) go(tasksPlace(...names));
      },
      update: app.update,
    });
  }

  close() {
    this.list?.close();
    this.live?.close();
  }

  view() {
    if (this.list) {
      return [
        h("div", { class: "head" }, h("h1", {}, link(place(["tasks"]), "Tasks"), h("span", { class: "separator" }, "/"), link(queuePlace(this.namespace, this.queue), `${this.namespace}/${this.queue}`))),
        this.list.view(),
      ];
    }
    return [
      h("div", { class: "head" }, h("h1", {}, "Tasks")),
      h("p", { class: "lead" }, "Tasks are searched within one queue. A task is also found by its id, such as ", h("code", {}, "shop/mail/0/4294967296"), "."),
      h("div", { class: "filters" }, this.picker.view()),
      this.error ? problem(this.error) : null,
      unreachable(this.answer?.unreachable),
      this.answer === null
        ? this.error ? null : empty("Loading…")
        : !this.answer.queues.length ? empty("There are no queues yet: the first task makes one.") : h(
            "ul",
            { class: "picks" },
            this.answer.queues.map((row) =>
              h(
                "li",
                { key: `${row.namespace}/${row.queue}` },
                link(tasksPlace(row.namespace, row.queue), `${row.namespace}/${row.queue}`),
                h("span", {}, ...STATES.filter(([state]) => row[{ waiting: "backlog" }[state] ?? state]).map(([state, label]) => link(tasksPlace(row.namespace, row.queue, { state }), `${count(row[{ waiting: "backlog" }[state] ?? state])} ${label}`, "small"))),
              ),
            ),
          ),
    ];
  }
}

