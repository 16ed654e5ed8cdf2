// The overview: the last hour, what needs attention, and the queues with the most to do.

import { path } from "./api.js";
import { attention } from "./attention.js";
import { recent } from "./charts.js";
import { h } from "./dom.js";
import { count, duration, rate, short } from "./format.js";
import { Live } from "./live.js";
import { badge, bar, empty, fact, link, problem, unreachable } from "./parts.js";
import { place, queuePlace } from "./places.js";
import { charts, newest } from "./series.js";

// Whoever starts the first task looks here. A node with many queues takes long to answer, and the gateway makes the pauses longer.
const INTERVAL_SECONDS = 1;

const LISTED = 100;
const BUSIEST = 12;
const BUSIEST_COLUMNS = [["waiting", ""], ["oldest", ""], ["running", "mid"], ["free slots", "mid"], ["in /s", "mid"], ["out /s", "mid"], ["dead", ""]];

export class Overview {
  constructor(app) {
    this.app = app;
    this.title = "Overview";
    this.series = null;
    this.oldest = null;
    this.problems = null;
    this.errors = [];
    this.hover = { at: null };
    this.live = new Live((index, data) => this.got(index, data), (index, error) => this.failed(index, error), { interval: INTERVAL_SECONDS });
    const namespace = app.namespace;
    this.live.watch([
      path(["series"], { namespace }),
      path(["queues"], { namespace, sort: "oldest", most: LISTED }),
      path(["problems"], { namespace }),
    ]);
  }

  close() {
    this.live.close();
  }

  got(index, data) {
    this.errors[index] = null;
    if (index === 0) this.series = data;
    else if (index === 1) this.oldest = data;
    else this.problems = data.problems;
    this.app.update();
  }

  failed(index, error) {
    this.errors[index] = error;
    this.app.update();
  }

  view() {
    const error = this.errors.find(Boolean);
    return [
      h("div", { class: "head" }, h("h1", {}, "Overview"), this.app.namespace ? badge(this.app.namespace) : null),
      error ? problem(error) : null,
      unreachable(this.oldest?.unreachable),
      this.facts(),
      h("div", { class: "columns" }, this.needs(), this.failures()),
      charts(this.series, this.hover, this.app.update),
      this.busiest(),
    ];
  }

  // The newest figures: of the queues themselves if all of them are listed, which are seconds old, else of the last step of the
  // series.
  figures() {
    const points = this.series.points;
    const perSecond = (values) => {
      const value = newest(values);
      return value === null ? null : value / this.series.step_seconds;
    };
    const failed = perSecond(points.failed);
    const others = { p50: recent(points.wait_p50), p99: recent(points.wait_p99), failures: failed === null ? null : failed * 60 };
    if (this.oldest === null || this.oldest.cursor !== null) {
      return { ...others, waiting: newest(points.backlog), in: perSecond(points.added), out: perSecond(points.ended), running: newest(points.running), free: newest(points.slots_free) };
    }
    const sum = (name) => this.oldest.queues.reduce((total, row) => total + row[name], 0);
    return { ...others, waiting: sum("backlog"), in: sum("added_per_second"), out: sum("finished_per_second"), running: sum("running"), free: newest(points.slots_free) };
  }

  facts() {
    if (!this.series) return h("dl", { class: "facts loading" });
    const found = this.figures();
    return h(
      "dl",
      { class: "facts" },
      fact("waiting", short(found.waiting)),
      fact("in", rate(found.in), { sub: " /s" }),
      fact("out", rate(found.out), { sub: " /s" }),
      fact("wait p50", duration(found.p50), { title: "Of tasks that began; none did in the last minute if there is no number" }),
      fact("wait p99", duration(found.p99)),
      fact("failures", rate(found.failures), { sub: " /min", kind: found.failures > 0 ? "bad" : "" }),
      fact("busy slots", [count(found.running), h("small", {}, `, ${count(found.free)} on offer`), bar(found.running ?? 0, (found.running ?? 0) + (found.free ?? 0))], {
        title: "Tasks that run, and free slots that workers offer; a worker offers a slot to each shard that has queues of its",
      }),
    );
  }

  needs() {
    const others = this.problems?.filter((one) => one.kind !== "failing");
    const nothing = this.oldest?.queues.length === 0 ? "There are no queues yet: the first task makes one." : "All queues are served, and no task waits for long.";
    return this.card("needs", "Needs attention", others, place(["queues"], { sort: "oldest" }), nothing);
  }

  failures() {
    const failing = this.problems?.filter((one) => one.kind === "failing");
    return this.card("failures", "Dead letters by error", failing, place(["dead"]), "No task has used up its attempts.");
  }

  card(id, title, problems, all, nothing) {
    const { items, more } = attention(problems ?? []);
    return h(
      "section",
      { class: "card", "aria-labelledby": id },
      h("h2", { id }, title),
      problems === undefined
        ? empty(this.errors.some(Boolean) ? "Not known." : "Loading…")
        : items.length
          ? h(
              "ul",
              { class: "needs" },
              items.map((one) => h("li", { key: one.key }, one.badge ? badge(one.badge, one.kind) : null, link(one.to, one.name), h("span", { title: one.remedy }, one.text))),
              more ? h("li", {}, link(all, `${count(more)} more`)) : null,
            )
          : empty(nothing),
    );
  }

  busiest() {
    const rows = [...(this.oldest?.queues ?? [])]
      .sort((one, other) => other.backlog + other.running - one.backlog - one.running || other.finished_per_second - one.finished_per_second)
      .slice(0, BUSIEST);
    if (!rows.length) return null;
    return h(
      "section",
      { class: "card", "aria-labelledby": "busiest" },
      h("h2", { id: "busiest" }, "Queues with the most to do ", link(place(["queues"]), "all queues", "aside")),
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still" },
          h(
            "thead",
            {},
            h("tr", {}, h("th", { scope: "col" }, "queue"), BUSIEST_COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: `number ${kind}`, key: name }, name))),
          ),
          h(
            "tbody",
            {},
            rows.map((row) =>
              h(
                "tr",
                { key: `${row.namespace}/${row.queue}` },
                h("th", { scope: "row", class: "main" }, link(queuePlace(row.namespace, row.queue), this.app.namespace ? row.queue : `${row.namespace}/${row.queue}`)),
                h("td", { class: "number" }, count(row.backlog)),
                h("td", { class: "number" }, row.oldest_seconds > 0 ? duration(row.oldest_seconds) : ""),
                h("td", { class: "number mid" }, count(row.running)),
                h("td", { class: "number mid" }, count(row.slots_free)),
                h("td", { class: "number mid" }, rate(row.added_per_second)),
                h("td", { class: "number mid" }, rate(row.finished_per_second)),
                h("td", { class: `number ${row.dead ? "bad" : ""}` }, count(row.dead)),
              ),
            ),
          ),
        ),
      ),
    );
  }
}
