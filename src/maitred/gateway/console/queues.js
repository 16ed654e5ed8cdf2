// All queues: filtered and sorted by the gateway, loaded page by page.

import { path } from "./api.js";
import { h } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { badge, link, select, unreachable } from "./parts.js";
import { go, note, place, queuePlace } from "./places.js";
import { Table } from "./table.js";

const PAGE = 100;
const INTERVAL_SECONDS = 3;

// How long after the last letter the gateway is asked.
const TYPING_MS = 200;

const ONLY = [
  ["", "all queues"],
  ["unserved", "not served"],
  ["paused", "paused"],
  ["dead", "with dead letters"],
];

export function queueState(row) {
  if (row.paused) return badge("paused", "warn", row.paused.reason || null);
  if (row.backlog > 0 && !row.workers) return badge("not served", "bad");
  return null;
}

export class Queues {
  constructor(app, query) {
    this.app = app;
    this.title = "Queues";
    this.fill = true;
    this.match = query.match ?? "";
    this.sort = query.sort ?? "backlog";
    this.only = query.only ?? "";
    const number = (name, label, show, more = {}) => ({ name, label, class: `number ${more.class ?? ""}`, sort: more.sort, title: more.title, cell: show });
    this.table = new Table({
      label: "Queues",
      columns: [
        {
          name: "queue",
          label: "queue",
          class: "main",
          sort: "name",
          cell: (row) => [link(queuePlace(row.namespace, row.queue), app.namespace ? row.queue : `${row.namespace}/${row.queue}`), " ", queueState(row)],
        },
        number("backlog", "waiting", (row) => count(row.backlog), { sort: "backlog" }),
        number("oldest", "oldest", (row) => (row.oldest_seconds > 0 ? duration(row.oldest_seconds) : ""), { sort: "oldest", title: "For how long the first of the waiting tasks could have been run" }),
        number("running", "running", (row) => count(row.running), { class: "mid" }),
        number("free", "free slots", (row) => count(row.slots_free), { class: "low", title: "Free slots that workers offer to the queue; a worker offers a slot to each of its queues" }),
        number("added", "in /s", (row) => rate(row.added_per_second), { sort: "added", class: "mid" }),
        number("finished", "out /s", (row) => rate(row.finished_per_second), { class: "mid" }),
        number("run", "run p50", (row) => duration(row.run_p50), { class: "mid", title: "How long attempts took, the median of the last five to ten minutes" }),
        number("failed", "failed", (row) => count(row.recent_failed), { class: "mid", title: "Attempts that failed in the last five to ten minutes" }),
        number("dead", "dead", (row) => h("span", { class: row.dead ? "bad" : "" }, count(row.dead)), { sort: "dead" }),
        number("workers", "workers", (row) => count(row.workers), { class: "mid" }),
        number("partitions", "partitions", (row) => count(row.partitions || null), { class: "low" }),
      ],
      key: (row) => `${row.namespace}/${row.queue}`,
      path: (cursor) => path(["queues"], { namespace: app.namespace, match: this.match, sort: this.sort, only: this.only, most: PAGE, cursor }),
      pick: (answer) => answer.queues,
      update: app.update,
      open: (row) => go(queuePlace(row.namespace, row.queue)),
      interval: INTERVAL_SECONDS,
      nothing: () => h("p", { class: "empty" }, this.match || this.only ? "No queue is like that." : "There are no queues yet: the first task of a queue makes it."),
    });
    this.table.sort = this.sort;
    this.table.onSort = (sort) => this.change({ sort });
  }

  close() {
    clearTimeout(this.typing);
    this.table.close();
  }

  change(changes) {
    Object.assign(this, changes);
    this.table.sort = this.sort;
    note(place(["queues"], { match: this.match, sort: this.sort === "backlog" ? "" : this.sort, only: this.only }));
    this.table.restart();
  }

  view() {
    return [
      h("div", { class: "head" }, h("h1", {}, "Queues")),
      h(
        "div",
        { class: "filters", role: "search", "aria-label": "Filter queues" },
        h("input", {
          type: "search",
          "data-search": true,
          placeholder: "Name contains…",
          "aria-label": "Name contains",
          value: this.match,
          spellcheck: "false",
          oninput: (event) => {
            this.match = event.target.value;
            clearTimeout(this.typing);
            this.typing = setTimeout(() => this.change({}), TYPING_MS);
          },
          onkeydown: (event) => {
            if (event.key === "ArrowDown" || event.key === "Enter") {
              event.preventDefault();
              this.table.element?.querySelector("tr[tabindex='0']")?.focus();
            }
          },
        }),
        select(this.only, ONLY, (only) => this.change({ only }), "Which queues"),
        h("span", { class: "aside", role: "status" }, this.table.isComplete ? plural(this.table.rows.length, "queue") : this.table.rows.length ? `${count(this.table.rows.length)} loaded` : ""),
      ),
      unreachable(this.table.answer?.unreachable),
      this.table.view(),
    ];
  }
}
