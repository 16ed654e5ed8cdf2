// One task: its timeline, its arguments, its error and its result, and what can be done to it.

import { actionsFor, change } from "./actions.js";
import { path } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, count, duration, json, moment, now, time, until } from "./format.js";
import { Live } from "./live.js";
import { badge, button, empty, fact, link, problem, textBox } from "./parts.js";
import { go, place, queuePlace } from "./places.js";
import { stateBadge } from "./tasks.js";
import { spans } from "./timeline.js";

const WITHHELD = {
  permission: "You may not see this: it needs the permission reveal.",
  size: "It is too large to be shown.",
  unknown: "No handler has said which arguments are hidden, so none is shown. Start a worker of this queue.",
  unreadable: "It is not readable as data.",
  forgotten: "It is no longer kept.",
};

export class TaskPage {
  constructor(app, namespace, queue, partition, sequence) {
    Object.assign(this, { app, namespace, queue, partition, sequence });
    this.id = `${namespace}/${queue}/${partition}/${sequence}`;
    this.title = `Task ${this.id}`;
    this.reveal = false;
    this.found = null;
    this.error = null;
    this.live = new Live(
      (_index, data) => {
        this.found = data;
        this.error = null;
        app.update();
      },
      (_index, error) => {
        this.error = error;
        app.update();
      },
    );
    this.watch();
  }

  watch() {
    this.live.watch([path([this.namespace, "queues", this.queue, "tasks", this.partition, this.sequence, "history"], { reveal: this.reveal ? "true" : "" })]);
  }

  close() {
    this.live.close();
  }

  async act(action) {
    const answer = await change(this.namespace, this.queue, action, [`${this.partition}/${this.sequence}`]);
    // Who went elsewhere meanwhile stays there.
    if (answer === null || this.app.view !== this) return;
    const added = Object.values(answer.added ?? {})[0];
    if (added) go(place(["tasks", this.namespace, this.queue, ...added.split("/").slice(-2)]));
    else this.live.refresh();
  }

  view() {
    const head = h(
      "div",
      { class: "head" },
      h("h1", {}, link(queuePlace(this.namespace, this.queue), `${this.namespace}/${this.queue}`), h("span", { class: "separator" }, "/"), h("code", {}, `${this.partition}/${this.sequence}`)),
      this.found ? stateBadge(this.found.task) : null,
      this.found ? this.buttons() : null,
    );
    if (this.error && !this.found) return [head, problem(this.error)];
    if (!this.found) return [head, empty("Loading…")];
    return [head, this.error ? problem(this.error) : null, this.facts(), this.timeline(), h("div", { class: "columns" }, this.arguments(), this.outcome())];
  }

  buttons() {
    const task = this.found.task;
    const denied = this.app.denied(this.namespace, "operate");
    const other = this.app.denied(this.namespace, "produce") || (task.arguments === null || task.arguments === undefined ? "Show the private data first: the form begins with the task's arguments." : "");
    return h(
      "div",
      { class: "buttons" },
      button("Show private data", {
        key: "reveal",
        kind: "toggle",
        pressed: this.reveal,
        denied: this.app.denied(this.namespace, "reveal"),
        title: "Arguments, result and messages.",
        onclick: () => {
          this.reveal = !this.reveal;
          this.watch();
          this.app.update();
        },
      }),
      actionsFor(task.state).map(([action, one], at) => button(one.label, { key: action, kind: one.kind === "danger" ? "danger quiet" : at === 0 ? "primary" : "", denied, onclick: () => this.act(action) })),
      ["running", "waiting", "delayed"].includes(task.state)
        ? null
        : button("With other arguments", {
            key: "other",
            denied: other,
            onclick: () => go(place(["queues", this.namespace, this.queue, "new"], { like: `${this.partition}/${this.sequence}` })),
          }),
    );
  }

  facts() {
    const { task, node, shard, function: name, retention, timeout, lease_until: lease } = this.found;
    const list = [
      fact("added", ago(task.added_at), { title: moment(task.added_at) }),
      task.by ? fact("by", task.by) : null,
      name ? fact("handler", name) : null,
      fact("attempts", count(task.attempts ?? 0), { sub: task.retries ? `, ${count(task.retries)} may follow` : null }),
      task.worker ? fact("worker", link(place(["workers"], { match: task.worker }), task.worker)) : null,
      task.state === "delayed" ? fact("due", until(task.due_at), { title: moment(task.due_at) }) : null,
      task.state === "running" && lease ? fact("lease", until(lease), { title: "Unless the worker is heard from until then, the task is redelivered" }) : null,
      task.ended_at ? fact("ended", ago(task.ended_at), { title: moment(task.ended_at) }) : null,
      task.expires_at ? fact("expires", until(task.expires_at), { title: moment(task.expires_at) }) : null,
      fact("timeout", timeout ? duration(timeout) : "none"),
      fact("result kept", task.kept_until ? until(task.kept_until) : duration(retention)),
      fact("priority", count(task.priority ?? 2)),
      fact("size", bytes(task.payload_bytes)),
      node ? fact("node", String(node).slice(0, 8), { title: node, sub: `, shard ${shard}` }) : null,
    ];
    return h("dl", { class: "facts texts" }, list);
  }

  timeline() {
    const { events, task } = this.found;
    const { rows, from, to } = spans(events, task, now());
    const place = (at) => `${(((at - from) / (to - from)) * 100).toFixed(3)}%`;
    const ticks = [0, 0.25, 0.5, 0.75, 1];
    return h(
      "section",
      { class: "card", "aria-labelledby": "timeline" },
      h("h2", { id: "timeline" }, "Timeline"),
      events.some((one) => one.omitted) ? h("p", { class: "note" }, `${count(events.find((one) => one.omitted).omitted)} earlier events are no longer known.`) : null,
      h(
        "div",
        { class: "waterfall", role: "list", "aria-label": "Waterfall of waits and attempts" },
        rows.map((row) =>
          h(
            "div",
            { key: row.key, class: "lane", role: "listitem", "aria-label": `${row.label}: ${row.parts.map((part) => `${part.text} ${duration(part.end - part.start)}`).join(", ")}` },
            h("span", { class: "name" }, row.label, row.sub ? h("small", {}, ` ${row.sub}`) : null),
            h(
              "span",
              { class: "track" },
              row.parts.map((part, at) =>
                h(
                  "span",
                  { key: at, class: `span ${part.kind}`, title: `${part.text}: ${time(part.start)}, ${duration(part.end - part.start)}`, style: { left: place(part.start), width: `max(3px, ${(((part.end - part.start) / (to - from)) * 100).toFixed(3)}%)` } },
                  (part.end - part.start) / (to - from) > 0.08 ? h("i", {}, duration(part.end - part.start)) : null,
                ),
              ),
            ),
          ),
        ),
        h(
          "div",
          { class: "lane axis", "aria-hidden": "true" },
          h("span", { class: "name" }),
          h("span", { class: "track" }, ticks.map((tick) => h("i", { key: tick, class: tick === 1 ? "end" : "", style: { left: `${tick * 100}%` } }, tick === 0 ? time(from) : `+${duration((to - from) * tick)}`))),
        ),
      ),
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still events", "aria-label": "Events" },
          h("thead", {}, h("tr", {}, ["when", "what", "attempt", "worker", "by", "error"].map((name) => h("th", { key: name, scope: "col", class: name === "attempt" ? "number" : "" }, name)))),
          h(
            "tbody",
            {},
            events.map((event, at) =>
              h(
                "tr",
                { key: at, class: event.at > now() ? "planned" : "" },
                h("td", { title: moment(event.at) }, event.at > now() ? until(event.at) : time(event.at)),
                h("td", {}, badge(WHAT[event.what] ?? event.what, KIND[event.what] ?? ""), event.forwarded ? h("small", { class: "dim", title: "The worker waited at a parent partition" }, " forwarded") : null),
                h("td", { class: "number" }, event.attempt || ""),
                h("td", {}, event.worker ?? ""),
                h("td", {}, event.by ?? ""),
                h("td", { class: "stretch" }, event.error ? h("span", { class: "bad" }, event.error) : "", event.message ? h("span", { class: "dim" }, ` ${event.message}`) : ""),
              ),
            ),
          ),
        ),
      ),
    );
  }

  arguments() {
    const { task } = this.found;
    return h(
      "section",
      { class: "card", "aria-labelledby": "arguments" },
      h("h2", { id: "arguments" }, "Arguments"),
      task.arguments !== null && task.arguments !== undefined ? textBox("Arguments", json(task.arguments)) : empty(this.reveal || task.withheld ? (WITHHELD[task.withheld] ?? "There are none.") : "Private: ", this.reveal || task.withheld ? null : "“Show private data” shows them to users who may see them."),
    );
  }

  outcome() {
    const { task, traceback, result, result_withheld: withheld } = this.found;
    const failed = task.error || task.reason;
    return h(
      "section",
      { class: "card", "aria-labelledby": "outcome" },
      h("h2", { id: "outcome" }, failed && task.state !== "done" ? "Error" : "Result"),
      failed ? h("p", { class: "problem" }, h("strong", {}, task.error || task.reason), task.message ? ` ${task.message}` : "") : null,
      failed && task.error && task.reason && task.reason !== task.error && task.reason !== "failed" ? h("p", { class: "dim" }, `The last attempt: ${task.reason}.`) : null,
      traceback ? textBox("Traceback", traceback) : null,
      result !== null && result !== undefined && !(withheld ?? "") && task.state === "done"
        ? textBox("Result", json(result))
        : task.state === "done"
          ? empty(withheld ? (WITHHELD[withheld] ?? withheld) : this.reveal ? "The handler returned nothing." : "Private: “Show private data” shows it to users who may see it.")
          : failed
            ? null
            : empty("There is none yet."),
    );
  }
}

const WHAT = { added: "added", started: "started", "timed-out": "timed out", lost: "worker lost", returned: "given back", retry: "next attempt", cancelling: "cancelling", forgotten: "forgotten", dead: "dead letter" };
const KIND = { done: "good", failed: "bad", "timed-out": "bad", lost: "bad", dead: "bad", cancelled: "warn", expired: "warn", cancelling: "warn" };

