// The query table of this gateway, live: who asks what, where it is, why it was refused.

import { del, path } from "./api.js";
import { h } from "./dom.js";
import { between, bytes, count, now, time } from "./format.js";
import { Live } from "./live.js";
import { act, badge, button, confirm, empty, link, problem, select, textBox } from "./parts.js";
import { go, note, place, queuePlace } from "./places.js";

const MOST = 500;

const TYPING_MS = 200;

const STATUSES = ["waiting", "connecting", "running", "streaming", "done", "failed", "cancelled", "refused", "lost", "late"];
const KINDS = { running: "good", streaming: "good", failed: "bad", refused: "bad", lost: "bad", late: "bad", cancelled: "warn" };
const UNDER_WAY = new Set(["waiting", "connecting", "running", "streaming"]);

export class Queries {
  constructor(app, namespace, query) {
    this.app = app;
    this.namespace = namespace ?? (app.namespace || app.namespaces[0] || "default");
    this.title = "Queries";
    this.status = query.status ?? "";
    this.queue = query.queue ?? "";
    this.user = query.user ?? "";
    this.worker = query.worker ?? "";
    this.answer = null;
    this.error = null;
    this.opened = null;
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
    this.watch();
  }

  watch() {
    const { status, queue, user, worker } = this;
    this.live.watch([path([this.namespace, "queries"], { status, queue, user, worker, most: MOST })]);
    note(place(["queries", this.namespace], { status, queue, user, worker }));
  }

  close() {
    clearTimeout(this.typing);
    this.live.close();
  }

  set(changes) {
    Object.assign(this, changes);
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.watch(), TYPING_MS);
    this.app.update();
  }

  async cancel(row) {
    const values = await confirm({ title: `Cancel query ${row.sequence}?`, text: "Its handler is stopped, and its caller gets an error.", action: "Cancel the query" });
    if (!values) return;
    await act(() => del(path([this.namespace, "queries", row.sequence])), (answer) => (answer.state === "over" ? `Query ${row.sequence} was over.` : `Query ${row.sequence} is being cancelled.`));
    this.live.refresh();
  }

  view() {
    const rows = [...(this.answer?.queries ?? [])].reverse();
    const text = (name, placeholder) =>
      h("input", { key: name, type: "search", name, placeholder, "aria-label": placeholder, "data-search": name === "queue", value: this[name], spellcheck: "false", oninput: (event) => this.set({ [name]: event.target.value }) });
    const names = this.app.namespaces.includes(this.namespace) ? this.app.namespaces : [this.namespace, ...this.app.namespaces];
    return [
      h("div", { class: "head" }, h("h1", {}, "Queries")),
      h(
        "div",
        { class: "filters", role: "search", "aria-label": "Filter queries" },
        select(this.namespace, names.map((one) => [one, one]), (namespace) => go(place(["queries", namespace])), "Namespace of the queries"),
        select(this.status, [["", "any state"], ...STATUSES.map((one) => [one, one])], (status) => this.set({ status }), "State"),
        text("queue", "Queue"),
        text("user", "User"),
        text("worker", "Worker"),
        h("span", { class: "aside", role: "status" }, rows.length ? `the newest ${count(rows.length)} of this gateway` : ""),
      ),
      this.error ? problem(this.error) : null,
      this.users(rows),
      this.answer === null && !this.error
        ? empty("Loading…")
        : rows.length === 0
          ? empty(this.status || this.queue || this.user || this.worker ? "No query is like that." : "This gateway has had no query of this namespace lately.")
          : h(
              "div",
              { class: "wide sheet" },
              h(
                "table",
                { class: "rows still", "aria-label": "Queries" },
                h("thead", {}, h("tr", {}, [["query", ""], ["state", ""], ["queue", ""], ["user", ""], ["waited", "number"], ["ran", "number"], ["worker", "mid"], ["error", "stretch"], ["size", "number low"], ["", ""]].map(([name, kind], at) => h("th", { key: at, scope: "col", class: kind }, name)))),
                h("tbody", {}, rows.map((row) => this.rows(row))),
              ),
            ),
    ];
  }

  // How many queries each user has, for the question who takes the slots.
  users(rows) {
    const found = new Map();
    for (const row of rows) {
      const one = found.get(row.user) ?? { all: 0, underWay: 0, refused: 0 };
      one.all++;
      if (UNDER_WAY.has(row.status)) one.underWay++;
      if (row.status === "refused") one.refused++;
      found.set(row.user, one);
    }
    // The chip of the user whose queries alone are listed takes the filter away again.
    if (found.size < 2 && !(this.user && found.has(this.user))) return null;
    const users = [...found].sort((one, other) => other[1].underWay - one[1].underWay || other[1].all - one[1].all).slice(0, 12);
    return h(
      "div",
      { class: "chips", "aria-label": "By user" },
      users.map(([user, one]) => button(`${user || "(no user)"}: ${one.underWay} under way, ${one.all} in all${one.refused ? `, ${one.refused} refused` : ""}`, { key: user, kind: "chip", pressed: this.user === user && user !== "", onclick: () => this.set({ user: this.user === user ? "" : user }) })),
    );
  }

  rows(row) {
    const started = row.sent_at || 0;
    const ended = row.returned_at || 0;
    const open = this.opened === row.sequence;
    const own = this.app.me.user && row.user === this.app.me.user;
    const denied = own ? "" : this.app.denied(this.namespace, "operate");
    return [
      h(
        "tr",
        { key: `q${row.sequence}`, class: "opens", onclick: (event) => { if (event.target.closest("a, button")) return; this.opened = open ? null : row.sequence; this.app.update(); } },
        h("td", { class: "code" }, h("button", { type: "button", class: "sort", "aria-expanded": String(open), onclick: () => { this.opened = open ? null : row.sequence; this.app.update(); } }, row.sequence)),
        h("td", {}, badge(row.status, KINDS[row.status] ?? "")),
        h("td", {}, link(queuePlace(row.namespace, row.queue), row.queue)),
        h("td", {}, row.user),
        h("td", { class: "number", title: `received ${time(row.received_at)}` }, between(row.received_at, started || ended || now())),
        h("td", { class: "number" }, started ? between(started, ended || now()) : ""),
        h("td", { class: "mid" }, row.worker),
        h("td", { class: "stretch bad" }, row.error),
        h("td", { class: "number low" }, bytes(row.bytes_out)),
        h("td", { class: "action" }, UNDER_WAY.has(row.status) ? button("Cancel", { kind: "small", denied, onclick: () => this.cancel(row) }) : null),
      ),
      open
        ? h(
            "tr",
            { key: `o${row.sequence}`, class: "detail" },
            h(
              "td",
              { colspan: 10 },
              h("p", { class: "dim" }, `From ${row.connection || "?"}, priority ${row.priority}, ${row.attempts} ${row.attempts === 1 ? "attempt" : "attempts"}${row.relayed ? ", relayed by the node" : ""}; received ${time(row.received_at)}, sent ${time(row.sent_at)}, returned ${time(row.returned_at)}.`),
              row.error ? h("p", { class: "problem" }, row.error) : null,
              row.query ? textBox("Text of the query", row.query) : empty("The text is private: its own user sees it, and users with the permission reveal."),
            ),
          )
        : null,
    ];
  }
}

