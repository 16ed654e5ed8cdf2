// The nodes: members of the cluster, their shards, load, loop lag and store.

import { path } from "./api.js";
import { h } from "./dom.js";
import { age, bytes, count, duration, now, rate, share } from "./format.js";
import { Live } from "./live.js";
import { badge, bar, empty, fact, problem, unreachable } from "./parts.js";

const STATES = { active: "good", serving: "good", draining: "warn", dead: "bad", unreachable: "bad", refused: "warn" };

// The same as in `maitred admin cluster`: a heartbeat is late when it is older than this share of the lease.
const LATE_SHARE = 0.5;

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
    const answer = this.answer;
    if (this.error && !answer) return [head, problem(this.error)];
    if (!answer) return [head, empty("Loading…")];
    return [
      head,
      this.error ? problem(this.error) : null,
      unreachable(answer.unreachable),
      answer.cluster === null ? null : this.cluster(answer),
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
          h("thead", {}, h("tr", {}, [["member", ""], ["state", ""], ["for", "number"], ["release", "mid"], ["shards", "number"], ["partitions", "number"], ["of the ring", ""], ["load", "number"], ["heartbeat", "number"]].map(([name, kind]) => h("th", { key: name, scope: "col", class: kind }, name)))),
          h("tbody", {}, members.map((one) => this.member(one, answer, total))),
        ),
      ),
    );
  }

  member(one, answer, total) {
    const beat = one.beat_seconds_ago;
    const late = one.state !== "dead" && beat !== null && answer.lease_seconds > 0 && beat > answer.lease_seconds * LATE_SHARE;
    const number = (value) => h("td", { class: "number" }, value);
    return h(
      "tr",
      { key: one.id },
      h("th", { scope: "row" }, one.address),
      h("td", {}, badge(one.state, STATES[one.state] ?? ""), late ? badge("late", "warn", "Its heartbeats come late") : null),
      number(one.since ? age(now() - one.since) : "–"),
      h("td", { class: "mid" }, one.release),
      number(count(one.shards)),
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
    return h(
      "section",
      { key: one.node || name, class: "card", "aria-label": `Node ${name}` },
      h("h2", {}, `Node ${name}`, h("small", { title: one.node }, ` ${String(one.node ?? "").slice(0, 8)}`), one.state ? badge(one.state, STATES[one.state] ?? "") : null),
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
            fact("store", count(shards.reduce((total, shard) => total + (shard.parts.writer?.commits ?? 0), 0)), { sub: " commits", title: "Since the shards started" }),
          )
        : null,
      h(
        "div",
        { class: "wide" },
        h(
          "table",
          { class: "rows still", "aria-label": `Shards of ${name}` },
          h("thead", {}, h("tr", {}, [["shard", "number"], ["state", ""], ["load", "number"], ["", ""], ["loop lag", "number"], ["memory", "number"], ["connections", "number mid"], ["in flight", "number mid"], ["requests /s", "number"], ["forwarded", "number low"], ["to write", "number low"], ["restarts", "number"], ["up for", "number mid"]].map(([label, kind], at) => h("th", { key: at, scope: "col", class: kind }, label)))),
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
      return h("tr", { key: shard.shard }, number(shard.shard), h("td", {}, badge(shard.state, "bad")), h("td", { colspan: 11 }, shard.error?.message ?? ""));
    }
    return h(
      "tr",
      { key: shard.shard },
      number(shard.shard),
      h("td", {}, badge(shard.state, STATES[shard.state] ?? "")),
      number(share(shard.load)),
      h("td", { class: "bars" }, bar(shard.load ?? 0, 1, shard.load > 0.85 ? "bad" : "")),
      number(duration(shard.loop_lag_seconds), shard.loop_lag_seconds > LATE_SECONDS ? "bad" : ""),
      number(bytes(shard.memory_bytes)),
      number(count(shard.connections), "mid"),
      number(count(shard.in_flight), "mid"),
      number(rate(shard.requests_per_second)),
      number(count(shard.forwarded), "low"),
      number(count(shard.parts.writer?.partitions_waiting), "low"),
      number(count(shard.restarts), shard.restarts ? "warn" : ""),
      number(duration(shard.uptime_seconds), "mid"),
    );
  }
}
