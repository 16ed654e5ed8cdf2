// The hash ring of a cluster: which member has which arcs and partitions, and what moves if one of them leaves.

import { path } from "./api.js";
import { h } from "./dom.js";
import { count, plural, share } from "./format.js";
import { Suggesting, empty, link, problem, select } from "./parts.js";
import { queueNames, queuePlace } from "./places.js";

const SIZE = 200;
const RADIUS = 84;

// Members have as many colours; then they begin anew.
const COLOURS = 8;

// Numbers of partitions that a row names.
const NAMED_MAX = 24;

export class Ring {
  // `noted` is called when the user has chosen something: the ring is then at another path.
  constructor(app, { queue = "", leaving = "" }, noted) {
    this.app = app;
    this.queue = queue;
    this.leaving = leaving;
    this.noted = noted;
    this.answer = null;
    this.error = null;
    this.picker = new Suggesting({
      label: "Partitions of the queue",
      placeholder: "Partitions of a queue",
      value: queue,
      suggest: (text) => app.suggestQueues(text),
      chosen: (text) => {
        this.queue = text;
        this.changed();
      },
      update: app.update,
    });
  }

  get parameters() {
    return { queue: this.queue, leaving: this.leaving };
  }

  changed() {
    this.error = null;
    this.noted();
    this.app.update();
  }

  // What the gateway is asked for.
  get path() {
    const names = queueNames(this.queue);
    return path(["ring"], { namespace: names?.[0], queue: names?.[1], leaving: this.leaving });
  }

  view() {
    const answer = this.answer;
    if (answer?.cluster === null) {
      return h("p", { class: "dim" }, "This node belongs to no cluster, so there is no ring: it has all partitions, each in the shard to which its key falls.");
    }
    return h(
      "section",
      { class: "card", "aria-labelledby": "ring" },
      h("h2", { id: "ring" }, "The ring", h("small", {}, " a key belongs to the member whose arc it falls into")),
      this.error ? problem(this.error) : null,
      answer === null ? (this.error ? null : empty("Loading…")) : this.drawn(answer),
    );
  }

  drawn(answer) {
    const members = answer.members;
    if (!members.length) return empty("No member is active, so nobody has any partition.");
    const gone = members.find((one) => one.id === this.leaving || one.address === this.leaving);
    const names = queueNames(this.queue);
    return [
      h(
        "div",
        { class: "filters" },
        this.picker.view(),
        select(gone?.id ?? "", [["", "All stay"], ...members.map((one) => [one.id, `${one.address} leaves`])], (id) => {
          this.leaving = id;
          this.changed();
        }, "What moves if a member leaves"),
        names ? h("span", { class: "aside" }, link(queuePlace(...names), "the queue")) : null,
      ),
      h("div", { class: "ringed" }, this.circle(answer, gone), h("div", { class: "wide" }, this.table(answer, gone, names))),
      h("p", { role: "status" }, this.summary(answer, gone, names)),
    ];
  }

  circle(answer, gone) {
    let start = 0;
    const arcs = answer.arcs.map(([end, member]) => {
      const from = start;
      start = end;
      return { from, end, member };
    });
    const colour = (at) => `member-${at % COLOURS}`;
    const text = answer.members.map((one) => `${one.address} ${share(one.share)}`).join(", ");
    return h(
      "svg",
      { class: "ring", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": `The ring: ${text}` },
      arcs.length > 1
        ? arcs.map(({ from, end, member }, at) => {
            const one = answer.members[member];
            const heir = gone && one.id === gone.id ? heirOf(arcs, at) : member;
            return h("path", { key: at, class: `arc ${colour(heir)} ${gone && one.id !== gone.id ? "stays" : ""}`, d: arc(from, end) }, h("title", {}, one.id === gone?.id ? `${one.address}, then ${answer.members[heir].address}` : one.address));
          })
        : h("circle", { class: "arc member-0", cx: SIZE / 2, cy: SIZE / 2, r: RADIUS }),
      h("text", { x: SIZE / 2, y: SIZE / 2 - 4, "text-anchor": "middle" }, plural(answer.members.length, "member")),
      h("text", { class: "dim", x: SIZE / 2, y: SIZE / 2 + 14, "text-anchor": "middle" }, gone ? "one leaves" : `view ${answer.version}`),
    );
  }

  table(answer, gone, names) {
    const heads = [["member", ""], ["share", "number"], ...(gone ? [["gets", "number"]] : []), ...(names ? [["partitions", "number"], ...(gone ? [["then", "number"]] : []), ["which", "mid"]] : [])];
    return h(
      "table",
      { class: "rows still", "aria-label": "Shares of the ring" },
      h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { key: name, scope: "col", class: kind }, name)))),
      h(
        "tbody",
        {},
        answer.members.map((one, at) => {
          const mine = answer.partitions.filter((part) => part.member === one.id);
          const then = answer.partitions.filter((part) => (part.heir ?? part.member) === one.id && one.id !== gone?.id);
          const leaves = one.id === gone?.id;
          const gets = gone?.heirs[one.id];
          return h(
            "tr",
            { key: one.id, class: leaves ? "opened" : "" },
            h("th", { scope: "row" }, h("i", { class: `swatch member-${at % COLOURS}`, "aria-hidden": "true" }), one.address),
            h("td", { class: "number" }, share(one.share)),
            gone ? h("td", { class: "number" }, leaves ? "leaves" : gets ? `+${share(gets)}` : "–") : null,
            names ? h("td", { class: "number" }, count(mine.length)) : null,
            names && gone ? h("td", { class: "number" }, leaves ? "–" : count(then.length)) : null,
            names ? h("td", { class: "mid code cut" }, listed(mine)) : null,
          );
        }),
      ),
    );
  }

  summary(answer, gone, names) {
    if (!gone) return names ? "" : "Choose a queue to see where its partitions are, and a member to see what moves if it leaves.";
    if (answer.members.length === 1) return `${gone.address} is the only active member: if it leaves, no partition has an owner.`;
    if (!names) return `If ${gone.address} leaves, its ${share(gone.share)} of the ring goes to the others, as the circle shows.`;
    const moved = answer.partitions.filter((one) => one.heir);
    const others = moved.filter((one) => one.member !== gone.id).length;
    return `If ${gone.address} leaves, ${moved.length} of ${plural(answer.partitions.length, "partition")} of ${this.queue} move${others ? `, ${others} of them between the members that stay` : ""}. They are loaded from the store at their new owners; tasks that run go on.`;
  }
}

// The member of the arc that follows; the last arc and the first may be those of one member.
function heirOf(arcs, at) {
  const { member } = arcs[at];
  for (let step = 1; step <= 2; step++) {
    const next = arcs[(at + step) % arcs.length].member;
    if (next !== member) return next;
  }
  return member;
}

function listed(partitions) {
  const numbers = partitions.slice(0, NAMED_MAX).map((one) => one.partition).join(" ");
  return partitions.length > NAMED_MAX ? `${numbers} …` : numbers;
}

function point(at) {
  const angle = at * 2 * Math.PI;
  return `${(SIZE / 2 + RADIUS * Math.sin(angle)).toFixed(2)} ${(SIZE / 2 - RADIUS * Math.cos(angle)).toFixed(2)}`;
}

function arc(from, to) {
  return `M${point(from)}A${RADIUS} ${RADIUS} 0 ${to - from > 0.5 ? 1 : 0} 1 ${point(to)}`;
}
