// One queue: how it is, its tree of partitions, its controls, its tasks.

import { del, patch, path, post } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, count, duration, exactly, plural, rate } from "./format.js";
import { Live } from "./live.js";
import { act, badge, bar, button, confirm, dialog, empty, fact, field, inPortions, link, problem, select, sliding, unreachable } from "./parts.js";
import { deadPlace, go, place, tasksPlace } from "./places.js";
import { charts } from "./series.js";
import { TaskList } from "./tasks.js";
import { inOrder, tree } from "./tree.js";

const PURGED = [
  ["waiting", "waiting"],
  ["delayed", "delayed"],
  ["dead", "dead letters"],
];

// A queue may have this many partitions (`update-partitions` of the command line says the same).
const PARTITIONS_MAX = 1_024;

// The slider goes this far; the number beside it goes to the end.
const PARTITIONS = {
  min: 1,
  max: 64,
  at: (number) => Math.min(number ?? 1, 64),
  of: (position) => position,
  says: (number) => count(number),
};

// The slider of a rate is logarithmic: ten steps from 1 to 10, as from 10 to 100, and at its right end there is no limit. A rate
// between two steps, or beyond them, can be typed.
const RATE_STEPS = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
const RATE_DECADES = [0.1, 1, 10, 100, 1_000, 10_000];
const RATE_VALUES = [...RATE_DECADES.flatMap((decade) => RATE_STEPS.map((step) => Number((step * decade).toPrecision(2)))), 100_000];

const RATES = {
  min: 0,
  max: RATE_VALUES.length,
  at: (rate) => {
    if (rate === null) return RATE_VALUES.length;
    const distance = (at) => Math.abs(Math.log(RATE_VALUES[at] / rate));
    return RATE_VALUES.reduce((nearest, _one, at) => (distance(at) < distance(nearest) ? at : nearest), 0);
  },
  of: (position) => RATE_VALUES[position] ?? null,
  says: (rate) => (rate === null ? "no limit" : `${exactly(rate)} per second`),
  marks: [...RATE_DECADES.map((decade, at) => [at * RATE_STEPS.length, decade < 1_000 ? String(decade) : `${decade / 1_000}k`]), [RATE_VALUES.length, "∞"]],
};

export class QueuePage {
  constructor(app, namespace, queue) {
    Object.assign(this, { app, namespace, queue });
    this.title = `${namespace}/${queue}`;
    this.state = null;
    this.series = null;
    this.error = null;
    this.hover = { at: null };
    this.before = new Map();
    this.rates = new Map();
    this.live = new Live((index, data) => this.got(index, data), (index, error) => this.failed(index, error));
    this.live.watch([path([namespace, "queues", queue]), path(["series"], { namespace, queue })]);
    this.list = new TaskList(app, namespace, queue, { state: "running" });
  }

  close() {
    this.live.close();
    this.list.close();
  }

  got(index, data) {
    if (index === 0) {
      this.error = null;
      this.measure(data.partitions);
      this.state = data;
    } else {
      this.series = data;
    }
    this.app.update();
  }

  failed(index, error) {
    if (index === 0) this.error = error;
    this.app.update();
  }

  // What each partition forwards per second, from the counts of two answers.
  measure(partitions) {
    const at = performance.now();
    for (const one of partitions) {
      const before = this.before.get(one.partition);
      if (before && one.forwarded_tasks !== undefined) {
        const seconds = (at - before.at) / 1_000;
        if (seconds < 0.2) continue;
        this.rates.set(one.partition, {
          tasks: Math.max(0, one.forwarded_tasks - before.tasks) / seconds,
          offers: Math.max(0, one.forwarded_offers - before.offers) / seconds,
        });
      }
      this.before.set(one.partition, { at, tasks: one.forwarded_tasks, offers: one.forwarded_offers });
    }
  }

  get where() {
    return [this.namespace, "queues", this.queue];
  }

  async change(work, done) {
    const answer = await act(work, done);
    this.live.refresh();
    return answer;
  }

  async pause() {
    const name = this.title;
    const values = await confirm({
      title: `Pause ${name}?`,
      text: "The queue goes on accepting tasks, and hands none out until it is resumed. Tasks that run are finished.",
      action: "Pause",
      kind: "primary",
    });
    if (values) await this.change(() => post(path([...this.where, "pause"]), { reason: values.reason }), `${name} is paused.`);
  }

  async resume() {
    const name = this.title;
    const values = await confirm({ title: `Resume ${name}?`, text: "Its tasks are handed out again.", action: "Resume", kind: "primary" });
    if (values) await this.change(() => post(path([...this.where, "resume"]), { reason: values.reason }), `${name} hands out tasks again.`);
  }

  async purge() {
    const states = new Set(["waiting"]);
    const values = await confirm({
      title: `Purge ${this.title}?`,
      text: "Deletes the tasks for good. Those that run are left alone.",
      action: "Purge",
      typed: this.queue,
      check: ({ older }) => {
        if (!states.size) return "Choose at least one kind of task.";
        return older && states.has("delayed") ? "Delayed tasks have no age: purge them without one." : "";
      },
      fields: (given) => [
        h(
          "fieldset",
          {},
          h("legend", {}, "Tasks to delete"),
          PURGED.map(([state, label]) =>
            h(
              "label",
              { key: state, class: "check" },
              h("input", {
                type: "checkbox",
                name: state,
                checked: states.has(state),
                onchange: (event) => (event.target.checked ? states.add(state) : states.delete(state)),
              }),
              label,
            ),
          ),
        ),
        field("Older than, in seconds", h("input", { type: "number", min: "0", step: "any", name: "older", value: "0", oninput: (event) => (given.older = Number(event.target.value)) }), "0: all of them."),
      ],
    });
    if (!values) return;
    const body = { states: [...states], older_than: values.older ?? 0, dry_run: false, reason: values.reason };
    await inPortions(`Purging ${this.title}`, (cursor) => post(path([...this.where, "purge"]), { ...body, cursor }), {
      verb: "deleted",
      counted: (answer) => Object.values(answer.tasks).reduce((sum, one) => sum + one, 0),
    });
    this.live.refresh();
  }

  async delete() {
    const name = this.title;
    const state = this.state;
    const holds = state.backlog + state.running + state.dead;
    const values = await confirm({
      title: `Delete ${name}?`,
      text: holds ? `It has ${plural(holds, "task")}, which are deleted with it.` : "It has no tasks. Using it again makes it anew.",
      action: "Delete",
      typed: this.queue,
    });
    if (!values) return;
    const done = await act(() => del(path(this.where, { force: holds ? "true" : "" })), `${name} is deleted.`);
    if (done !== null && this.app.view === this) go(place(["queues"]));
  }

  async setPartitions() {
    const root = this.state.partitions[0];
    const given = { read: root.counts.read, write: root.counts.write, force: false };
    const number = (name, label, hint, update) =>
      sliding(label, { name, value: given[name], scale: PARTITIONS, hint, min: "1", max: String(PARTITIONS_MAX), required: true, changed: (value) => { given[name] = value; update(); } });
    const done = await dialog("Partitions", (close, update) =>
      h(
        "form",
        { class: "dialog", onsubmit: (event) => { event.preventDefault(); close(true); } },
        h("h2", {}, `Partitions of ${this.title}`),
        number("write", "Written to", "New tasks go to these.", update),
        number("read", "Read from", "At least as many. Partitions that are only read drain, and are removed when they are empty.", update),
        given.read < given.write ? h("p", { class: "problem", role: "alert" }, "Every partition that is written to has to be read.") : null,
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", name: "force", checked: given.force, onchange: (event) => { given.force = event.target.checked; update(); } }),
          "Remove partitions although they hold tasks",
        ),
        given.force ? h("p", { class: "note bad" }, "The tasks of the removed partitions are lost.") : null,
        h("div", { class: "buttons" }, button("Back", { onclick: () => close(), kind: "quiet" }), h("button", { type: "submit", class: `button ${given.force ? "danger" : "primary"}`, disabled: given.read < given.write }, "Set")),
      ),
    );
    if (done) await this.change(() => post(path([...this.where, "partitions"]), given), `${this.title} has ${plural(given.write, "partition")} to write to, ${given.read} to read.`);
  }

  async setSetting(name) {
    const found = this.state.settings[name];
    const isBool = typeof found.value === "boolean";
    const given = { value: found.value };
    const answer = await dialog(name, (close, update) => {
      const reason = (event) => (given.reason = event.target.value);
      return h(
        "form",
        { class: "dialog", onsubmit: (event) => { event.preventDefault(); close("set"); } },
        h("h2", {}, name),
        h("p", {}, sourceOf(found)),
        isBool
          ? h("label", { class: "check" }, h("input", { type: "checkbox", name: "value", checked: given.value, onchange: (event) => { given.value = event.target.checked; update(); } }), "on")
          : found.choices?.length
            ? field("Value", select(given.value, found.choices.map((word) => [word, word]), (value) => { given.value = value; update(); }, "Value"))
            : name === "rate_per_second"
              ? sliding("Tasks per second", { name: "value", value: given.value, scale: RATES, hint: "Empty, or the slider at its right end: no limit.", step: "any", min: "0", placeholder: "no limit", "data-first": true, changed: (value) => { given.value = value; update(); } })
              : field("Value", h("input", { type: "number", step: "any", min: "0", name: "value", required: true, "data-first": true, value: String(given.value), oninput: (event) => (given.value = Number(event.target.value)) })),
        field("Reason", h("input", { name: "reason", maxlength: "200", oninput: reason }), "For the audit log; may be empty."),
        h(
          "div",
          { class: "buttons" },
          found.source === "live" ? button("Back to the settings file", { onclick: () => close("unset") }) : null,
          button("Back", { onclick: () => close(), kind: "quiet" }),
          h("button", { type: "submit", class: "button primary" }, "Set"),
        ),
      );
    });
    if (!answer) return;
    const body = {
      set: answer === "set" ? { [name]: given.value } : {},
      unset: answer === "unset" ? [name] : [],
      reason: given.reason ?? "",
      // Another operator may have changed it while this dialog was open.
      expect_version: this.state.controls.version,
    };
    await this.change(() => patch(path([...this.where, "settings"]), body), answer === "set" ? `${name} is set.` : `${name} is what the settings file says.`);
  }

  view() {
    const head = h("div", { class: "head" }, h("h1", {}, link(place(["queues"]), "Queues"), h("span", { class: "separator" }, "/"), this.title), this.state ? this.badges() : null, this.state ? this.actions() : null);
    if (this.error && !this.state) return [head, problem(this.error)];
    if (!this.state) return [head, empty("Loading…")];
    return [
      head,
      this.error ? problem(this.error) : null,
      this.pausedNote(),
      unreachable(this.state.partitions.filter((one) => one.state === "unreachable")),
      this.facts(),
      charts(this.series, this.hover, this.app.update),
      this.partitions(),
      h("section", { class: "embedded", "aria-labelledby": "its-tasks" }, h("h2", { id: "its-tasks" }, "Tasks ", link(tasksPlace(this.namespace, this.queue, this.list.address), "on a page of their own", "aside")), this.list.view()),
      h("div", { class: "columns" }, this.settings(), this.storage()),
    ];
  }

  badges() {
    const state = this.state;
    return [
      state.controls?.pause ? badge("paused", "warn") : null,
      state.workers.length ? null : badge("no worker", state.backlog ? "bad" : "warn"),
    ];
  }

  actions() {
    const denied = this.app.denied(this.namespace, "operate");
    const paused = this.state.controls?.pause;
    return h(
      "div",
      { class: "buttons" },
      link(place(["queues", this.namespace, this.queue, "new"]), "Enqueue or ask", "button"),
      paused ? button("Resume", { onclick: () => this.resume(), denied, kind: "primary", key: "resume" }) : button("Pause", { onclick: () => this.pause(), denied, key: "pause" }),
      button("Purge", { onclick: () => this.purge(), denied, kind: "danger quiet" }),
      button("Delete", { onclick: () => this.delete(), denied, kind: "danger quiet" }),
    );
  }

  pausedNote() {
    const pause = this.state.controls?.pause;
    if (!pause) return null;
    return h("p", { class: "note warn" }, `Paused${pause.by ? ` by ${pause.by}` : ""}${pause.at ? ` ${ago(pause.at)}` : ""}${pause.reason ? `: ${pause.reason}` : "."}`);
  }

  facts() {
    const state = this.state;
    const answered = state.partitions.filter((one) => one.state !== "unreachable");
    const sum = (name) => answered.reduce((total, one) => total + (one[name] ?? 0), 0);
    const oldest = Math.max(0, ...answered.map((one) => one.backlog_age_seconds ?? 0));
    const to = (of) => tasksPlace(this.namespace, this.queue, { state: of });
    const served = state.served_seconds_ago;
    const limit = state.settings?.rate_per_second?.value;
    return h(
      "dl",
      { class: "facts" },
      fact("waiting", link(to("waiting"), count(state.backlog - state.later))),
      fact("oldest", state.backlog ? duration(oldest) : "–"),
      fact("delayed", link(to("delayed"), count(state.later))),
      fact("running", link(to("running"), count(state.running))),
      fact("dead", link(deadPlace(this.namespace, this.queue), count(state.dead)), { kind: state.dead ? "bad" : "" }),
      fact("in", rate(sum("added_per_second")), { sub: " /s" }),
      fact("out", rate(sum("finished_per_second")), limit ? { sub: ` of ${rate(limit)} /s`, title: "The setting rate_per_second limits how many tasks are handed out" } : { sub: " /s" }),
      fact("offers", count(state.offers), { title: "Free slots of workers that wait for a task here" }),
      fact("workers", link(place(["workers"], { queue: this.title }), count(state.workers.length)), {
        title: state.workers.length ? null : served === null || served === undefined ? "No worker served the queue lately" : `A worker last served it ${duration(served)} ago`,
      }),
    );
  }

  partitions() {
    const denied = this.app.denied(this.namespace, "operate");
    const rows = inOrder(this.state.partitions);
    const most = Math.max(1, ...rows.map((one) => one.backlog ?? 0));
    const counts = this.state.partitions[0].counts;
    const columns = ["backlog", "", "oldest", "running", "offers", "in /s", "out /s", "tasks up /s", "offers up /s", "state", "node", "shard"];
    return h(
      "section",
      { class: "card", "aria-labelledby": "partitions" },
      h(
        "h2",
        { id: "partitions" },
        "Partitions",
        counts ? h("small", {}, ` ${counts.write} written to, ${counts.read} read`) : null,
        button("Change", { onclick: () => this.setPartitions(), name: "Change partitions", denied, kind: "quiet small aside" }),
      ),
      tree(this.state.partitions, this.rates),
      h(
        "div",
        { class: "wide tall" },
        h(
          "table",
          { class: "rows still", "aria-label": "Partitions as a tree" },
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "partition"), columns.map((name, at) => h("th", { key: at, scope: "col", class: at === 1 || at > 8 ? "" : "number" }, name)))),
          h(
            "tbody",
            {},
            rows.map((one) => this.partitionRow(one, most)),
          ),
        ),
      ),
    );
  }

  partitionRow(one, most) {
    const name = h("th", { scope: "row" }, h("span", { class: "branch", style: { "padding-left": `${one.depth * 18}px` } }, one.depth ? "└ " : "", one.partition, one.depth ? null : h("small", {}, " root")));
    if (one.state === "unreachable") {
      return h("tr", { key: one.partition, class: "bad" }, name, h("td", { colspan: 12 }, one.error?.message ?? "unreachable"));
    }
    const flow = this.rates.get(one.partition);
    const number = (value) => h("td", { class: "number" }, value);
    return h(
      "tr",
      { key: one.partition },
      name,
      number(count(one.backlog)),
      h("td", { class: "bars" }, bar(one.backlog, most)),
      number(one.backlog ? duration(one.backlog_age_seconds) : ""),
      number(count(one.running)),
      number(count(one.offers)),
      number(rate(one.added_per_second)),
      number(rate(one.finished_per_second)),
      number(one.parent === null || one.parent === undefined ? "" : rate(flow?.tasks)),
      number(one.parent === null || one.parent === undefined ? "" : rate(flow?.offers)),
      h("td", {}, one.state === "writable" ? one.state : badge(one.state, "warn")),
      h("td", { class: "dim", title: one.node }, String(one.node ?? "").slice(0, 8)),
      h("td", {}, one.shard),
    );
  }

  settings() {
    const denied = this.app.denied(this.namespace, "operate");
    const found = Object.entries(this.state.settings ?? {});
    return h(
      "section",
      { class: "card", "aria-labelledby": "settings" },
      h("h2", { id: "settings" }, "Live settings"),
      found.length
        ? h(
            "dl",
            { class: "list" },
            found.map(([name, one]) => [
              h("dt", { key: `n${name}` }, name),
              h(
                "dd",
                { key: `v${name}`, title: one.reason || null },
                h("b", {}, one.value === null ? "no limit" : typeof one.value === "boolean" ? (one.value ? "on" : "off") : typeof one.value === "string" ? one.value : exactly(one.value)),
                h("small", {}, ` ${sourceOf(one)}`),
                button("Change", { onclick: () => this.setSetting(name), name: `Change ${name}`, denied, kind: "quiet small" }),
              ),
            ]),
          )
        : empty("This node tells none."),
    );
  }

  storage() {
    const stored = this.state.stored ?? {};
    const namespaceStored = this.state.namespace_stored ?? {};
    const of = (value, most, show) => (most === null || most === undefined ? show(value) : `${show(value)} of ${show(most)}`);
    return h(
      "section",
      { class: "card", "aria-labelledby": "storage" },
      h("h2", { id: "storage" }, "In the store"),
      h(
        "dl",
        { class: "list" },
        h("dt", {}, "this queue"),
        h("dd", {}, `${of(stored.tasks, stored.most_tasks, count)} tasks, ${of(stored.bytes, stored.most_bytes, bytes)}`),
        h("dt", {}, `namespace ${this.namespace}`),
        h("dd", {}, `${of(namespaceStored.tasks, namespaceStored.most_tasks, count)} tasks, ${of(namespaceStored.bytes, namespaceStored.most_bytes, bytes)}`),
      ),
    );
  }
}

function sourceOf(one) {
  if (one.source !== "live") return one.source === "default" ? "by default" : "by the settings file";
  return `set${one.by ? ` by ${one.by}` : ""} ${ago(one.at)}${one.reason ? `: ${one.reason}` : ""}`;
}

