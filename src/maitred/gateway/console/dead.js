// Dead letters grouped by error: which error, how often, and all of one error retried or dropped at once.

import { changeAll } from "./actions.js";
import { joined } from "./attention.js";
import { get, path } from "./api.js";
import { h } from "./dom.js";
import { ago, count, moment, plural } from "./format.js";
import { Live } from "./live.js";
import { bar, button, empty, link, problem, unreachable } from "./parts.js";
import { deadPlace, place, queuePlace, tasksPlace } from "./places.js";

const QUEUES = 100;

// Grouping reads the dead letters of the queue, so it is not asked often.
const INTERVAL_SECONDS = 10;

export class Dead {
  constructor(app, namespace, queue) {
    Object.assign(this, { app, namespace, queue });
    this.title = queue === undefined ? "Dead letters" : `Dead letters of ${namespace}/${queue}`;
    this.answer = null;
    this.error = null;
    this.more = [];
    this.loading = false;
    this.live = new Live(
      (_index, data) => {
        this.answer = data;
        this.error = null;
        if (!data.cursor) this.more = [];
        app.update();
      },
      (_index, error) => {
        this.error = error;
        app.update();
      },
      { interval: INTERVAL_SECONDS },
    );
    this.live.watch([queue === undefined ? path(["queues"], { namespace: app.namespace, sort: "dead", most: QUEUES }) : path([namespace, "queues", queue, "dead-groups"])]);
  }

  close() {
    this.live.close();
  }

  view() {
    return this.queue === undefined ? this.queues() : this.groups();
  }

  queues() {
    const rows = (this.answer?.queues ?? []).filter((row) => row.dead > 0);
    const most = Math.max(1, ...rows.map((row) => row.dead));
    return [
      h("div", { class: "head" }, h("h1", {}, "Dead letters")),
      h("p", { class: "lead" }, "Tasks whose attempts are used up, by queue."),
      this.error ? problem(this.error) : null,
      unreachable(this.answer?.unreachable),
      this.answer === null && !this.error
        ? empty("Loading…")
        : rows.length === 0
          ? empty("There are none.")
          : h(
              "ul",
              { class: "picks bars" },
              rows.map((row) => h("li", { key: `${row.namespace}/${row.queue}` }, link(deadPlace(row.namespace, row.queue), `${row.namespace}/${row.queue}`), bar(row.dead, most, "bad"), h("b", { class: "number" }, count(row.dead)))),
            ),
    ];
  }

  get joined() {
    return joined([...(this.answer?.groups ?? []), ...this.more.flatMap((answer) => answer.groups)]);
  }

  get cursor() {
    return (this.more.at(-1) ?? this.answer)?.cursor ?? null;
  }

  async load() {
    if (this.loading || !this.cursor) return;
    this.loading = true;
    this.app.update();
    try {
      this.more.push(await get(path([this.namespace, "queues", this.queue, "dead-groups"], { cursor: this.cursor })));
    } catch (error) {
      this.error = error;
    }
    this.loading = false;
    this.app.update();
  }

  async bulk(action, group) {
    const error = group ? group.error || group.reason : "";
    const filter = { worker: "", error, by: "", added_after: 0, added_before: 0 };
    const described = group ? `All dead letters of ${this.namespace}/${this.queue} that have ${error} in the class, the code or the message of their error` : `All dead letters of ${this.namespace}/${this.queue}`;
    if (await changeAll(this.namespace, this.queue, action, "dead", filter, described)) {
      this.more = [];
      this.live.refresh();
    }
  }

  groups() {
    const denied = this.app.denied(this.namespace, "operate");
    const groups = this.joined;
    const most = Math.max(1, ...groups.map((group) => group.count));
    const total = groups.reduce((sum, group) => sum + group.count, 0);
    return [
      h(
        "div",
        { class: "head" },
        h("h1", {}, link(place(["dead"]), "Dead letters"), h("span", { class: "separator" }, "/"), link(queuePlace(this.namespace, this.queue), `${this.namespace}/${this.queue}`)),
        h(
          "div",
          { class: "buttons" },
          link(tasksPlace(this.namespace, this.queue, { state: "dead" }), "One by one", "button"),
          button("Retry all", { denied, kind: "primary", onclick: () => this.bulk("retry", null) }),
          button("Drop all", { denied, kind: "danger quiet", onclick: () => this.bulk("drop", null) }),
        ),
      ),
      this.error ? problem(this.error) : null,
      unreachable(this.answer?.unreachable),
      this.answer === null && !this.error
        ? empty("Loading…")
        : groups.length === 0
          ? empty("There are none.")
          : [
              h("p", { class: "lead", role: "status" }, `${plural(total, "dead letter")}${this.cursor ? " looked at so far" : ""}, ${plural(groups.length, "error")}.`),
              h(
                "ul",
                { class: "groups" },
                groups.map((group, at) =>
                  h(
                    "li",
                    { key: `${group.error} ${group.reason}`, class: "card" },
                    h("div", { class: "line" }, h("b", { class: "number" }, count(group.count)), h("code", { class: "bad" }, group.error || group.reason || "unknown error"), group.reason && group.error ? h("span", { class: "dim" }, group.reason) : null, h("span", { class: "dim", title: moment(group.newest_at) }, `newest ${ago(group.newest_at)}`),
                      h(
                        "div",
                        { class: "buttons" },
                        group.example ? link(place(["tasks", this.namespace, this.queue, ...group.example.split("/")]), "An example", "button small") : null,
                        link(tasksPlace(this.namespace, this.queue, { state: "dead", error: group.error || group.reason }), "Show", "button small"),
                        button("Retry", { key: `r${at}`, kind: "small", name: `Retry ${group.error || group.reason}`, denied, onclick: () => this.bulk("retry", group) }),
                        button("Drop", { key: `d${at}`, kind: "small danger quiet", name: `Drop ${group.error || group.reason}`, denied, onclick: () => this.bulk("drop", group) }),
                      ),
                    ),
                    group.message ? h("p", { class: "told" }, group.message, group.messages.size > 1 ? h("small", {}, ` and ${plural(group.messages.size - 1, "other message")}`) : null) : null,
                    bar(group.count, most, "bad"),
                  ),
                ),
              ),
              this.cursor ? button(this.loading ? "Looking…" : "Look at more", { onclick: () => this.load(), busy: this.loading }) : null,
            ],
    ];
  }
}
