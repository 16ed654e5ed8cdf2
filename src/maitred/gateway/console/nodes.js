// The nodes: members of the cluster, their shards, load, loop lag and store.

import { path } from "./api.js";
import { h } from "./dom.js";
import { age, ago, bytes, count, duration, rate, share } from "./format.js";
import { Live } from "./live.js";
import { badge, bar, empty, fact, problem, unreachable } from "./parts.js";

const STATES = { active: "good", serving: "good", draining: "warn", dead: "bad", unreachable: "bad", refused: "warn" };

// A loop that is late by this much delays every answer by as much.
const LATE_SECONDS = 0.1;

export class Nodes {
  constructor(app) {
    this.app = app;
    this.title = "Nodes";
    this.answer = null;
    this.error = null;
    this.live = new Live(
      (_index, data) => {
        this.answer = data;
        this.error = null;
        app.update();
      },
      (_index, error) => {
        this.error = error;
        app.update();
      },
    );
    this.live.watch([path(["nodes"])]);
  }

  close() {
    this.live.close();
  }

  view() {
    const head = h("div", { class: "head" }, h("h1", {}, "Nodes"));
    if (this.error && !this.answer) return [head, problem(this.error)];
    if (!this.answer) return [head, empty("Loading…")];
    const { nodes = [], cluster, shards = [] } = this.answer;
    const all = nodes.length ? nodes : [{ node: "", address: "", state: "", shards }];
    return [head, this.error ? problem(this.error) : null, unreachable(this.answer.unreachable), this.cluster(cluster), all.map((one) => this.node(one))];
  }

  cluster(cluster) {
    if (!cluster) return null;
    const members = cluster.members ?? [];
    const total = members.reduce((sum, one) => sum + (one.partitions ?? 0), 0);
    return h(
      "section",
      { class: "card", "aria-labelledby": "cluster" },
      h("h2", { id: "cluster" }, `Cluster ${cluster.cluster}`, h("small", {}, ` view ${cluster.version}`)),
      (cluster.warnings ?? []).map((text) => h("p", { key: text, class: "note warn" }, text)),
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still", "aria-label": "Members of the cluster" },
          h("thead", {}, h("tr", {}, [["member", ""], ["state", ""], ["since", "number"], ["release", "mid"], ["shards", "number"], ["partitions", "number"], ["of the ring", ""], ["load", "number"], ["heartbeat", "number"]].map(([name, kind]) => h("th", { key: name, scope: "col", class: kind }, name)))),
          h(
            "tbody",
            {},
            members.map((one) =>
              h(
                "tr",
                { key: one.id ?? one.address },
                h("th", { scope: "row" }, one.address),
                h("td", {}, badge(one.state, STATES[one.state] ?? ""), one.late ? badge("late", "warn") : null),
                h("td", { class: "number" }, ago(one.since)),
                h("td", { class: "mid" }, one.release),
                h("td", { class: "number" }, count(one.shards)),
                h("td", { class: "number" }, count(one.partitions)),
                h("td", { class: "bars" }, total ? bar(one.partitions ?? 0, total) : null),
                h("td", { class: "number" }, one.load === null || one.load === undefined ? "–" : share(one.load)),
                h("td", { class: "number" }, one.beat_seconds_ago === null || one.beat_seconds_ago === undefined ? "–" : `${age(one.beat_seconds_ago)} ago`),
              ),
            ),
          ),
        ),
      ),
    );
  }

  node(one) {
    const shards = one.shards ?? [];
    const sum = (name) => shards.reduce((total, shard) => total + (shard[name] ?? 0), 0);
    const lag = Math.max(0, ...shards.map((shard) => shard.loop_lag_seconds ?? 0));
    const name = one.address || one.node || "This node";
    return h(
      "section",
      { key: one.node || name, class: "card", "aria-label": `Node ${name}` },
      h("h2", {}, `Node ${name}`, h("small", { title: one.node }, ` ${String(one.node ?? "").slice(0, 8)}`), one.state ? badge(one.state, STATES[one.state] ?? "") : null),
      one.error ? problem(one.error) : null,
      shards.length
        ? h(
            "dl",
            { class: "facts" },
            fact("shards", count(shards.length)),
            fact("load", `${sum("load").toFixed(2)}`, { sub: " cores" }),
            fact("memory", bytes(sum("memory_bytes"))),
            fact("connections", count(sum("connections"))),
            fact("requests", rate(sum("requests_per_second")), { sub: " /s" }),
            shards.some((shard) => shard.loop_lag_seconds !== undefined) ? fact("loop lag", duration(lag), { kind: lag > LATE_SECONDS ? "bad" : "" }) : null,
            one.store ? fact("store", one.store.kind ?? "", { sub: one.store.commit_p99_seconds === undefined ? null : `, commit p99 ${duration(one.store.commit_p99_seconds)}` }) : null,
          )
        : null,
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still", "aria-label": `Shards of ${name}` },
          h("thead", {}, h("tr", {}, [["shard", "number"], ["state", ""], ["load", "number"], ["", ""], ["loop lag", "number"], ["memory", "number"], ["connections", "number mid"], ["in flight", "number mid"], ["requests /s", "number"], ["forwarded", "number low"], ["restarts", "number"], ["up for", "number mid"]].map(([label, kind], at) => h("th", { key: at, scope: "col", class: kind }, label)))),
          h(
            "tbody",
            {},
            shards.map((shard) => this.shard(shard)),
          ),
        ),
      ),
    );
  }

  shard(shard) {
    const number = (value, kind = "") => h("td", { class: `number ${kind}` }, value);
    if (shard.state === "unreachable" || shard.state === "refused") {
      return h("tr", { key: shard.shard }, number(shard.shard), h("td", {}, badge(shard.state, "bad")), h("td", { colspan: 10 }, shard.error?.message ?? ""));
    }
    return h(
      "tr",
      { key: shard.shard },
      number(shard.shard),
      h("td", {}, badge(shard.state, STATES[shard.state] ?? "")),
      number(share(shard.load)),
      h("td", { class: "bars" }, bar(shard.load ?? 0, 1, shard.load > 0.85 ? "bad" : "")),
      number(shard.loop_lag_seconds === undefined ? "–" : duration(shard.loop_lag_seconds), shard.loop_lag_seconds > LATE_SECONDS ? "bad" : ""),
      number(bytes(shard.memory_bytes)),
      number(count(shard.connections), "mid"),
      number(count(shard.in_flight), "mid"),
      number(rate(shard.requests_per_second)),
      number(count(shard.forwarded), "low"),
      number(count(shard.restarts), shard.restarts ? "warn" : ""),
      number(duration(shard.uptime_seconds), "mid"),
    );
  }
}
