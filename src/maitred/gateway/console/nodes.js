// The nodes: members of the cluster, the ring, their shards; the last hour of load, loop lag, memory and commits.

import { path } from "./api.js";
import { chart, roundUpBytes, roundUpSeconds, sparkline } from "./charts.js";
import { h } from "./dom.js";
import { NOTHING, age, bytes, count, duration, now, rate, share } from "./format.js";
import { Live } from "./live.js";
import { badge, bar, button, empty, fact, problem, unreachable } from "./parts.js";
import { note, place } from "./places.js";
import { Ring } from "./ring.js";
import { known, newest } from "./series.js";

const STATES = { active: "good", serving: "good", draining: "warn", dead: "bad", unreachable: "bad", refused: "warn" };

// The same as in `maitred admin cluster`: a heartbeat is late when it is older than this share of the lease.
const LATE_SHARE = 0.5;

// A loop that is late by this much delays every answer by as much.
const LATE_SECONDS = 0.1;

const cores = (value) => (value === null || value === undefined ? NOTHING : value.toFixed(value > 0 && value < 0.1 ? 3 : 2));

// The last hour has a new point every ten seconds, and is most of what the page asks for.
const INTERVAL_SECONDS = 4;

// With more nodes, their charts are shown on demand.
const CHARTED_MAX = 3;

const PLOT_HEIGHT = 80;

export class Nodes {
  constructor(app, query = {}) {
    this.app = app;
    this.title = "Nodes";
    this.answer = null;
    this.error = null;
    this.past = null;
    this.charted = new Map();
    this.hovers = new Map();
    this.ring = new Ring(app, query, () => {
      note(place(["nodes"], this.ring.parameters));
      this.watch();
    });
    const parts = [
      [(data) => (this.answer = data), (error) => (this.error = error)],
      // Without the past, the rest of the page is still right.
      [(data) => (this.past = data), () => {}],
      [(data) => (this.ring.answer = data), (error) => (this.ring.error = error)],
    ];
    this.live = new Live(
      (index, data) => {
        parts[index][0](data);
        parts[index][1](null);
        app.update();
      },
      (index, error) => {
        parts[index][1](error);
        app.update();
      },
      { interval: INTERVAL_SECONDS },
    );
    this.watch();
  }

  watch() {
    this.live.watch([path(["nodes"]), path(["nodes", "series"]), this.ring.path]);
  }

  close() {
    this.live.close();
  }

  // The last hour of one shard, from when it is known; null before it has come.
  pastOf(node, shard) {
    return this.past?.shards.find((one) => one.node === node && one.shard === shard)?.points ?? null;
  }

  view() {
    const head = h("div", { class: "head" }, h("h1", {}, "Nodes"));
    const answer = this.answer;
    if (this.error && !answer) return [head, problem(this.error)];
    if (!answer) return [head, empty("Loading…")];
    return [
      head,
      this.error ? problem(this.error) : null,
      unreachable(answer.unreachable),
      answer.cluster === null ? null : this.cluster(answer),
      this.ring.view(),
      answer.nodes.map((one) => this.node({ ...one, shards: answer.shards.filter((shard) => shard.node === one.node) })),
    ];
  }

  cluster(answer) {
    const members = answer.nodes;
    const total = members.reduce((sum, one) => sum + (one.partitions ?? 0), 0);
    return h(
      "section",
      { class: "card", "aria-labelledby": "cluster" },
      h("h2", { id: "cluster" }, `Cluster ${answer.cluster}`, h("small", {}, ` view ${answer.version}`)),
      answer.problem ? h("p", { class: "note warn" }, answer.problem) : null,
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still", "aria-label": "Members of the cluster" },
          h("thead", {}, h("tr", {}, [["member", ""], ["state", ""], ["for", "number mid"], ["release", "mid"], ["shards", "number mid"], ["partitions", "number"], ["of the ring", ""], ["load", "number"], ["heartbeat", "number"]].map(([name, kind]) => h("th", { key: name, scope: "col", class: kind }, name)))),
          h("tbody", {}, members.map((one) => this.member(one, answer, total))),
        ),
      ),
    );
  }

  member(one, answer, total) {
    const beat = one.beat_seconds_ago;
    const late = one.state !== "dead" && beat !== null && answer.lease_seconds > 0 && beat > answer.lease_seconds * LATE_SHARE;
    const number = (value, kind = "") => h("td", { class: `number ${kind}` }, value);
    return h(
      "tr",
      { key: one.id },
      h("th", { scope: "row" }, one.address),
      h("td", {}, badge(one.state, STATES[one.state] ?? ""), late ? badge("late", "warn", "Its heartbeats come late") : null),
      number(one.since ? age(now() - one.since) : "–", "mid"),
      h("td", { class: "mid" }, one.release),
      number(count(one.shards), "mid"),
      number(count(one.partitions)),
      h("td", { class: "bars" }, total ? bar(one.partitions ?? 0, total) : null),
      number(one.load === null ? "–" : share(one.load)),
      number(beat === null ? "–" : `${age(beat)} ago`),
    );
  }

  node(one) {
    const shards = one.shards ?? [];
    const sum = (name) => shards.reduce((total, shard) => total + (shard[name] ?? 0), 0);
    const lag = Math.max(0, ...shards.map((shard) => shard.loop_lag_seconds ?? 0));
    const name = one.address || one.node || "This node";
    const key = one.node || name;
    const pasts = shards.map((shard) => this.pastOf(one.node, shard.shard)).filter(Boolean);
    const worst = (column) => pasts.map((points) => newest(points[column])).reduce((most, value) => (value !== null && (most === null || value > most) ? value : most), null);
    const charted = this.charted.get(key) ?? this.answer.nodes.length <= CHARTED_MAX;
    return h(
      "section",
      { key, class: "card", "aria-label": `Node ${name}` },
      h("h2", {}, `Node ${name}`, h("small", { title: one.node }, ` ${String(one.node ?? "").slice(0, 8)}`), one.state ? badge(one.state, STATES[one.state] ?? "") : null, shards.length ? button(charted ? "Hide the last hour" : "Show the last hour", { kind: "quiet small aside", onclick: () => { this.charted.set(key, !charted); this.app.update(); } }) : null),
      shards.length
        ? h(
            "dl",
            { class: "facts" },
            fact("shards", count(shards.length)),
            fact("load", `${sum("load").toFixed(2)}`, { sub: " cores" }),
            fact("memory", bytes(sum("memory_bytes"))),
            fact("connections", count(sum("connections"))),
            fact("requests", rate(sum("requests_per_second")), { sub: " /s" }),
            fact("loop lag", duration(lag), { kind: lag > LATE_SECONDS ? "bad" : "", title: "The longest that something waited for its turn in a shard, in the last seconds" }),
            fact("commit p50", duration(worst("commit_p50")), { title: "How long the store took for a commit, in the last ten seconds with one, at the slowest shard" }),
            fact("commit p99", duration(worst("commit_p99"))),
            fact("batch", rate(worst("commit_rows")), { sub: " rows", title: "Rows that one commit wrote on average, at the shard with the largest" }),
          )
        : null,
      charted && shards.length ? this.charts(key, pasts) : null,
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still", "aria-label": `Shards of ${name}` },
          h("thead", {}, h("tr", {}, [["shard", "number"], ["state", ""], ["load", "number"], ["", "mid"], ["loop lag", "number"], ["memory", "number"], ["partitions", "number"], ["commit p50", "number low"], ["p99", "number"], ["batch", "number mid"], ["connections", "number low"], ["in flight", "number low"], ["requests /s", "number"], ["restarts", "number"], ["up for", "number mid"]].map(([label, kind], at) => h("th", { key: at, scope: "col", class: kind }, label)))),
          h(
            "tbody",
            {},
            shards.map((shard) => this.shard(shard, this.pastOf(one.node, shard.shard))),
          ),
        ),
      ),
    );
  }

  // The last hour of a node: sums over its shards, and the worst of them where numbers cannot be added.
  charts(key, pasts) {
    if (!pasts.length) return this.past === null ? h("div", { class: "charts loading short", "aria-busy": "true" }) : null;
    const joined = (column, join) =>
      pasts[0][column].map((_value, at) => {
        const values = pasts.map((points) => points[column][at]).filter((value) => value !== null && value !== undefined);
        return values.length ? join(values) : null;
      });
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const most = (values) => Math.max(...values);
    const { from, points } = known({
      from: this.past.from,
      step_seconds: this.past.step_seconds,
      points: {
        load: joined("load", sum),
        lag: joined("loop_lag", most),
        memory: joined("memory", sum),
        p50: joined("commit_p50", most),
        p99: joined("commit_p99", most),
      },
    });
    if (!this.hovers.has(key)) this.hovers.set(key, { at: null });
    const common = { from, step: this.past.step_seconds, hover: this.hovers.get(key), update: this.app.update, height: PLOT_HEIGHT };
    const one = (name, values) => ({ name, kind: "one", values, filled: true });
    const suffix = pasts.length > 1 ? ", worst" : "";
    return h(
      "div",
      { class: "charts small" },
      chart({ ...common, key: "load", title: "Load, in cores", show: cores, series: [one("load", points.load)] }),
      chart({ ...common, key: "memory", title: "Memory", show: bytes, round: roundUpBytes, series: [one("memory", points.memory)] }),
      chart({ ...common, key: "lag", title: `Loop lag${suffix}`, show: duration, round: roundUpSeconds, series: [one("lag", points.lag)] }),
      chart({ ...common, key: "commits", title: `Commits${suffix}`, show: duration, round: roundUpSeconds, series: [one("p99", points.p99), { name: "p50", kind: "two", values: points.p50 }] }),
    );
  }

  shard(shard, past) {
    const number = (value, kind = "") => h("td", { class: `number ${kind}` }, value);
    if (shard.state === "unreachable" || shard.state === "refused") {
      return h("tr", { key: shard.shard }, number(shard.shard), h("td", {}, badge(shard.state, "bad")), h("td", { colspan: 12 }, shard.error?.message ?? ""));
    }
    return h(
      "tr",
      { key: shard.shard },
      number(shard.shard),
      h("td", {}, badge(shard.state, STATES[shard.state] ?? "")),
      number(share(shard.load)),
      h("td", { class: "mid" }, past ? sparkline(known({ ...this.past, points: { load: past.load } }).points.load, `Load of the last hour, now ${share(shard.load)}`) : null),
      number(duration(shard.loop_lag_seconds), shard.loop_lag_seconds > LATE_SECONDS ? "bad" : ""),
      number(bytes(shard.memory_bytes)),
      number(count(shard.parts.partitions?.loaded)),
      number(duration(newest(past?.commit_p50)), "low"),
      number(duration(newest(past?.commit_p99))),
      number(rate(newest(past?.commit_rows)), "mid"),
      number(count(shard.connections), "low"),
      number(count(shard.in_flight), "low"),
      number(rate(shard.requests_per_second)),
      number(count(shard.restarts), shard.restarts ? "warn" : ""),
      number(duration(shard.uptime_seconds), "mid"),
    );
  }
}
