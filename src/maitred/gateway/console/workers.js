// Workers: a cell for each slot, what it runs, since when; the limit that the worker measured; offline and online.

import { path, post } from "./api.js";
import { h } from "./dom.js";
import { age, count, duration, now, plural, time } from "./format.js";
import { chart } from "./charts.js";
import { Live } from "./live.js";
import { Suggesting, act, badge, button, confirm, empty, link, unreachable } from "./parts.js";
import { note, place, queueNames, queuePlace, taskPlaceById } from "./places.js";
import { known } from "./series.js";
import { Table } from "./table.js";

const PAGE = 100;

// Cells of one row; a worker with more slots says how many there are besides.
const CELLS_MAX = 54;

// From so many cells on they are smaller, so that two lines have room for them.
const MANY = 32;

const ROW_HEIGHT = 44;

const TYPING_MS = 200;

// The node adds a point to the past of a worker every ten seconds.
const PAST_SECONDS = 5;

const PLOT_HEIGHT = 90;

// A worker that was not heard from for this long may be gone.
const QUIET_SECONDS = 15;

// How many of the tasks and queries belong to which queue, the most first.
function byQueue(running) {
  const found = new Map();
  for (const one of running) if (queueNames(one.queue ?? "")) found.set(one.queue, (found.get(one.queue) ?? 0) + 1);
  return [...found].sort((one, other) => other[1] - one[1]);
}

export class Workers {
  constructor(app, name, query) {
    this.app = app;
    this.title = "Workers";
    this.fill = true;
    this.queue = query.queue ?? "";
    this.match = query.match ?? "";
    this.opened = query.open ?? "";
    this.past = null;
    this.hover = { at: null };
    this.picker = new Suggesting({
      label: "Of the queue",
      placeholder: "Of any queue",
      value: this.queue,
      suggest: (text) => app.suggestQueues(text),
      chosen: (text) => {
        this.queue = text;
        this.restart();
      },
      update: app.update,
    });
    this.table = new Table({
      label: "Workers",
      rowHeight: ROW_HEIGHT,
      columns: [
        { name: "worker", label: "worker", class: "main", cell: (row) => [link(this.place({ open: row.session }), row.worker), " ", this.badges(row)] },
        { name: "slots", label: "slots", class: "grid stretch", cell: (row) => this.cells(row) },
        { name: "busy", label: "busy", class: "number", cell: (row) => [count(row.busy), h("small", {}, ` of ${count(row.slots)}`)] },
        { name: "limit", label: "limit", class: "number mid", title: "How many tasks and queries the worker takes at a time, as it measures itself", cell: (row) => h("span", { title: row.limit_reason || null }, row.limit === null || row.limit === undefined ? "–" : count(row.limit)) },
        { name: "queues", label: "queues", class: "low", cell: (row) => this.queues(row) },
        { name: "heard", label: "heard", class: "number mid", cell: (row) => h("span", { class: row.heard_seconds > QUIET_SECONDS ? "warn" : "" }, `${age(row.heard_seconds)} ago`) },
        { name: "action", label: "", class: "action", cell: (row) => this.action(row) },
      ],
      key: (row) => row.session,
      path: (cursor) => {
        const names = queueNames(this.queue);
        return path(["workers"], { namespace: names?.[0] ?? app.namespace, queue: names?.[1], match: this.match, most: PAGE, cursor });
      },
      pick: (answer) => answer.workers,
      update: app.update,
      open: (row) => this.show(this.opened === row.session ? "" : row.session),
      rowClass: (row) => (row.session === this.opened ? "opened" : ""),
      nothing: () => this.match || this.queue ? empty("No worker is like that.") : empty("There are no workers. ", h("code", {}, "maitred worker MODULE:APP"), " starts one."),
    });
    this.follow();
  }

  close() {
    clearTimeout(this.typing);
    this.table.close();
    this.live?.close();
  }

  // Show one worker below the list; an empty session: none.
  show(session) {
    this.opened = session;
    this.noted();
    this.follow();
    this.app.update();
  }

  // Keep the past of the worker that is shown up to date.
  follow() {
    this.live?.close();
    this.live = this.past = null;
    if (!/^[0-9a-f]{32}$/.test(this.opened)) return;
    const show = (past) => {
      this.past = past;
      this.app.update();
    };
    this.live = new Live((_index, data) => show(data), (_index, error) => show({ error }), { interval: PAST_SECONDS });
    this.live.watch([path(["workers", this.opened, "series"])]);
  }

  place(more = {}) {
    return place(["workers"], { queue: this.queue, match: this.match, open: this.opened, ...more });
  }

  noted() {
    note(this.place());
  }

  restart() {
    this.noted();
    this.table.restart();
  }

  badges(row) {
    return [row.state !== "online" ? badge(row.state, "warn") : null, row.suspected ? badge("suspected", "bad", "A gateway reported that it does not answer") : null];
  }

  queuesOf(row) {
    return row.queues.map(queueNames);
  }

  queues(row) {
    const names = this.queuesOf(row);
    return [
      names.slice(0, 2).map(([namespace, queue], at) => h("span", { key: at }, at ? ", " : "", link(queuePlace(namespace, queue), `${namespace}/${queue}`))),
      row.queue_count > 2 ? h("span", { class: "dim", title: names.map((one) => one.join("/")).join(", ") }, ` and ${count(row.queue_count - 2)} more`) : null,
    ];
  }

  cells(row) {
    const running = row.running ?? [];
    // What runs is newer than the number that the worker reported last.
    const busy = Math.max(row.busy ?? 0, running.length);
    const slots = Math.max(row.slots ?? 0, busy);
    const shown = Math.min(slots, CELLS_MAX);
    const limit = row.limit ?? slots;
    const cells = [];
    for (let at = 0; at < shown; at++) {
      const one = running[at];
      const kind = at < running.length ? (one.task ? "task" : "query") : at < busy ? "busy" : at < limit ? "free" : "closed";
      const what = one ? `${one.queue ?? ""} ${one.task ? `task ${one.task}` : `query ${one.query ?? ""}`}${one.since ? `, for ${duration(Math.max(0, now() - one.since))}` : ""}` : { busy: "busy", free: "free", closed: "beyond the measured limit" }[kind];
      cells.push(h("i", { key: at, class: `cell ${kind}`, title: what }));
    }
    return h("span", { class: `cells ${shown > MANY ? "many" : ""}`, role: "img", "aria-label": `${busy} of ${slots} slots are busy` }, cells, slots > shown ? h("small", {}, `+${count(slots - shown)}`) : null);
  }

  action(row) {
    const names = this.queuesOf(row);
    const denied = names.map((one) => this.app.denied(one[0], "operate")).find(Boolean) ?? "";
    const to = row.online === false ? "online" : "offline";
    return button(to === "online" ? "Online" : "Offline", { kind: "small", name: `${to === "online" ? "Online" : "Offline"}: ${row.worker}`, denied, onclick: () => this.put(row, names, to) });
  }

  async put(row, names, to) {
    // The node names at most a hundred queues of a worker.
    const some = row.queue_count > names.length ? ` for ${count(names.length)} of its ${count(row.queue_count)} queues` : "";
    const values = await confirm({
      title: to === "offline" ? `Take ${row.worker} offline${some}?` : `Put ${row.worker} online${some}?`,
      text: to === "offline" ? "It takes nothing new, and finishes what it runs. It stays connected." : "It takes tasks and queries again.",
      action: to === "offline" ? "Take offline" : "Put online",
      kind: "primary",
      withReason: false,
    });
    if (!values) return;
    await act(
      () => Promise.all(names.map(([namespace, queue]) => post(path([namespace, "queues", queue, "workers", row.session, to]), {}))),
      `${row.worker} is ${to}${some}.`,
    );
    this.table.refresh();
  }

  view() {
    return [
      h("div", { class: "head" }, h("h1", {}, "Workers")),
      h(
        "div",
        { class: "filters", role: "search", "aria-label": "Filter workers" },
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
            this.typing = setTimeout(() => this.restart(), TYPING_MS);
          },
        }),
        this.picker.view(),
        h("span", { class: "legend" }, [["task", "task"], ["query", "query"], ["busy", "busy"], ["free", "free"], ["closed", "beyond the limit"]].map(([kind, text]) => h("span", { key: kind }, h("i", { class: `cell ${kind}`, "aria-hidden": "true" }), text))),
        h("span", { class: "aside", role: "status" }, this.table.isComplete ? plural(this.table.rows.length, "worker") : this.table.rows.length ? `${count(this.table.rows.length)} loaded` : ""),
      ),
      unreachable(this.table.answer?.unreachable),
      this.table.view(),
      this.detail(),
    ];
  }

  // The last hour of the worker that is shown: what it was allowed to take, by its own measure, and what it took.
  history() {
    const past = this.past;
    if (past === null) return h("div", { class: "charts loading short", "aria-busy": "true" });
    if (past.error) return problem(past.error);
    if (!past.points.busy?.some((value) => value !== null)) return empty("Its past is not known yet: the node notes it every ten seconds.");
    const { from, points } = known(past);
    const measures = points.limit.some((value) => value !== null);
    return h(
      "div",
      { class: "charts" },
      chart({
        title: measures ? "Measured limit, and busy slots" : "Busy slots",
        from,
        step: past.step_seconds,
        show: count,
        hover: this.hover,
        update: this.app.update,
        height: PLOT_HEIGHT,
        series: [
          { name: "slots", kind: "quiet", values: points.slots },
          ...(measures ? [{ name: "limit", kind: "two", values: points.limit }] : []),
          { name: "busy", kind: "one", values: points.busy, filled: true },
        ],
      }),
    );
  }

  detail() {
    const row = this.table.rows.find((one) => one.session === this.opened);
    if (!row) return null;
    return h(
      "section",
      { class: "card drawer", "aria-labelledby": "worker" },
      h(
        "h2",
        { id: "worker" },
        row.worker,
        h("small", {}, ` ${row.address ?? ""}`),
        button("Close", { kind: "quiet small aside", onclick: () => this.show("") }),
      ),
      h(
        "p",
        {},
        `${count(row.busy)} of ${count(row.slots)} slots are busy; heard from ${duration(row.heard_seconds)} ago. `,
        row.limit === null || row.limit === undefined ? "" : `It takes ${count(row.limit)} at a time${row.limit_reason ? ` (${row.limit_reason})` : ""}. `,
      ),
      this.history(),
      h("p", {}, "Queues: ", this.queuesOf(row).map((names, at) => h("span", { key: at }, at ? ", " : "", link(queuePlace(...names), names.join("/"))))),
      row.running?.length ? h("p", {}, "Runs: ", byQueue(row.running).map(([queue, number], at) => h("span", { key: queue }, at ? ", " : "", `${count(number)} of `, link(queuePlace(...queueNames(queue)), queue)))) : null,
      row.running?.length
        ? h(
            "div",
            { class: "wide tall" },
            h(
              "table",
              { class: "rows still", "aria-label": `What ${row.worker} runs` },
              h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "what"), h("th", { scope: "col" }, "queue"), h("th", { scope: "col", class: "number" }, "for"), h("th", { scope: "col", class: "number" }, "since"))),
              h(
                "tbody",
                {},
                row.running.map((one, at) => {
                  const to = one.task ? taskPlaceById(`${one.queue}/${one.task}`) : null;
                  return h("tr", { key: at }, h("td", { class: "code" }, one.task ? (to ? link(to, one.task) : one.task) : `query ${one.query ?? ""}`), h("td", {}, one.queue ?? ""), h("td", { class: "number" }, one.since ? duration(Math.max(0, now() - one.since)) : "–"), h("td", { class: "number" }, time(one.since)));
                }),
              ),
            ),
          )
        : empty("It runs nothing that the node knows of."),
    );
  }
}

