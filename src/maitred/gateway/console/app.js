// The console: who is here, which view is shown, the navigation around it, the keyboard.

import { Away, del, get, path, setCsrf, whenLoggedOut } from "./api.js";
import { h, oncePerFrame, render } from "./dom.js";
import { duration } from "./format.js";
import * as live from "./live.js";
import { Suggesting, button, dialog, empty, link, problem, say } from "./parts.js";
import { go, here, place, queueNames, queuePlace, taskPlaceById } from "./places.js";
import { Dead } from "./dead.js";
import { Form } from "./form.js";
import { Login } from "./login.js";
import { Nodes } from "./nodes.js";
import { Overview } from "./overview.js";
import { Queries } from "./queries.js";
import { QueuePage } from "./queue.js";
import { Queues } from "./queues.js";
import { TaskPage } from "./task.js";
import { Tasks } from "./tasks.js";
import { Workers } from "./workers.js";

const AREAS = [
  ["", "Overview", "o"],
  ["queues", "Queues", "q"],
  ["tasks", "Tasks", "t"],
  ["dead", "Dead letters", "d"],
  ["workers", "Workers", "w"],
  ["queries", "Queries", "u"],
  ["nodes", "Nodes", "n"],
];

// How long the second key of `g q` may take.
const SECOND_KEY_MS = 1_500;

// How often a gateway that cannot be reached at the start is tried again.
const AGAIN_MS = 2_000;

const INCLUDES = { operate: ["read"] };

// Permissions that change nothing.
const LOOKING = new Set(["read", "reveal", "observe"]);

class App {
  constructor() {
    this.me = null;
    this.error = null;
    this.view = null;
    this.namespace = sessionStorage.getItem("namespace") ?? "";
    this.namespaces = [];
    this.theme = localStorage.getItem("theme") ?? "auto";
    this.update = oncePerFrame(() => this.draw());
    this.search = new Suggesting({
      label: "Search queues, or go to a task by its id",
      placeholder: "Queue, or task id",
      suggest: (text) => this.suggestQueues(text),
      chosen: (text) => this.searched(text),
      update: this.update,
    });
    this.setTheme(this.theme);
    live.onState(this.update);
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("keydown", (event) => this.onKey(event));
    whenLoggedOut(() => this.loggedOut());
    // Ages on the page go on between two answers.
    setInterval(() => {
      if (live.state() !== "paused") this.update();
    }, 1_000);
  }

  async start() {
    try {
      this.me = await get(path(["me"]));
      setCsrf(this.me.csrf);
      this.error = null;
    } catch (error) {
      if (error.status !== 401) {
        this.error = error;
        this.update();
        if (error instanceof Away || error.status >= 500) setTimeout(() => this.start(), AGAIN_MS);
      }
      return;
    }
    this.route();
    this.findNamespaces();
  }

  loggedOut() {
    if (this.view instanceof Login) return;
    this.view?.close?.();
    this.view = new Login(this);
    this.me = null;
    this.update();
  }

  async logOut() {
    try {
      await del(path(["session"]));
    } catch (error) {
      if (error.status !== 401) {
        say(error.sentence, "bad");
        return;
      }
    }
    setCsrf("");
    this.loggedOut();
  }

  // The reason why the user may not do something; empty if allowed.
  denied(namespace, permission) {
    if (!this.me || !this.me.with_users) return "";
    const has = (list) => (list ?? []).some((one) => one === "admin" || one === permission || INCLUDES[one]?.includes(permission));
    if (has(this.me.permissions["*"]) || has(this.me.permissions[namespace])) return "";
    const whom = this.me.user ? `The user ${this.me.user}` : "You";
    return `${whom} may not do this: it needs the permission ${permission} in ${namespace === "*" ? "all namespaces" : `the namespace ${namespace}`}.`;
  }

  may(namespace, permission) {
    return this.denied(namespace, permission) === "";
  }

  setNamespace(namespace) {
    this.namespace = namespace;
    sessionStorage.setItem("namespace", namespace);
    // Queries are those of one namespace, which their address has.
    const names = here().names;
    if (names[0] === "queries" && namespace && names[1] !== namespace) go(place(["queries", namespace]));
    else this.route();
  }

  async findNamespaces() {
    const known = new Set(Object.keys(this.me.permissions ?? {}).filter((one) => one !== "*"));
    try {
      const answer = await get(path(["queues"], { most: 1 }));
      for (const one of Object.keys(answer.namespaces)) known.add(one);
    } catch {
      // Users without `read` have no list; they may still ask for one queue by its name.
    }
    if (this.namespace) known.add(this.namespace);
    this.namespaces = [...known].sort();
    this.update();
  }

  async suggestQueues(text) {
    if (text.includes("/") && taskPlaceById(text)) return [{ value: text, label: "Go to this task" }];
    const answer = await get(path(["queues"], { namespace: this.namespace, match: text, most: 8 }));
    return answer.queues.map((row) => ({ value: `${row.namespace}/${row.queue}`, hint: row.backlog ? `${row.backlog} wait` : "" }));
  }

  searched(text) {
    const task = taskPlaceById(text);
    const names = queueNames(text);
    if (!text.trim()) return;
    if (task) go(task);
    else if (names) go(queuePlace(...names));
    else go(place(["queues"], { match: text }));
    this.search.value = "";
    document.activeElement?.blur();
    document.getElementById("main")?.focus();
    this.update();
  }

  // Views

  route() {
    if (!this.me) return;
    const { names, query } = here();
    this.view?.close?.();
    this.view = this.made(names, query);
    this.area = names[0] ?? "";
    document.title = `${this.view.title} · maitred`;
    this.update();
    requestAnimationFrame(() => {
      const main = document.getElementById("main");
      document.querySelector(".areas [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (main) {
        main.scrollTop = 0;
        if (this.routed) main.focus({ preventScroll: true });
      }
      this.routed = true;
    });
  }

  made(names, query) {
    const [area, namespace, queue] = names;
    if (area === undefined) return new Overview(this);
    if (area === "queues" && names.length === 1) return new Queues(this, query);
    if (area === "queues" && names.length === 3) return new QueuePage(this, namespace, queue);
    if (area === "queues" && names.length === 4 && names[3] === "new") return new Form(this, namespace, queue, query);
    if (area === "tasks" && names.length <= 3) return new Tasks(this, namespace, queue, query);
    if (area === "tasks" && names.length === 5) return new TaskPage(this, ...names.slice(1));
    if (area === "dead" && names.length <= 3) return new Dead(this, namespace, queue, query);
    if (area === "workers" && names.length <= 2) return new Workers(this, names[1], query);
    if (area === "queries" && names.length <= 2) return new Queries(this, namespace, query);
    if (area === "nodes" && names.length === 1) return new Nodes(this, query);
    return { title: "Nothing here", view: () => [h("div", { class: "head" }, h("h1", {}, "Nothing here")), empty("Nothing is at this address of the console. ", link("#/", "Overview"))] };
  }

  // Keyboard

  onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest?.("input, textarea, select");
    if (event.key === "Escape" && typing) {
      event.target.blur();
      return;
    }
    if (typing || !this.me) return;
    if (event.key === "/") {
      event.preventDefault();
      (document.querySelector("[data-search]") ?? document.querySelector("#search input"))?.focus();
    } else if (event.key === "?") {
      this.help();
    } else if (event.key === "g") {
      this.wentAt = performance.now();
    } else if (this.wentAt && performance.now() - this.wentAt < SECOND_KEY_MS) {
      this.wentAt = 0;
      const area = AREAS.find(([, , key]) => key === event.key);
      if (area) go(area[0] ? place([area[0]]) : "#/");
    }
  }

  help() {
    const keys = [
      ["/", "search: the filter of the view, or queues and tasks"],
      ...AREAS.map(([, label, key]) => [`g ${key}`, label]),
      ["↑ ↓ Home End", "move in a table"],
      ["Enter", "open the row"],
      ["Space", "select the row"],
      ["Esc", "leave a field, close a dialog"],
    ];
    dialog("Keyboard", (close) =>
      h(
        "div",
        { class: "dialog" },
        h("h2", {}, "Keyboard"),
        h("dl", { class: "keys" }, keys.map(([key, text]) => [h("dt", { key: `k${key}` }, h("kbd", {}, key)), h("dd", { key: `t${key}` }, text)])),
        h("div", { class: "buttons" }, button("Close", { onclick: () => close(), kind: "primary" })),
      ),
    );
  }

  // Appearance

  setTheme(theme) {
    this.theme = theme;
    localStorage.setItem("theme", theme);
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
  }

  nextTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const order = dark ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
    this.setTheme(order[(order.indexOf(this.theme) + 1) % order.length]);
    this.update();
  }

  draw() {
    const root = document.getElementById("app");
    if (this.view instanceof Login) {
      document.title = "Log in · maitred";
      render(root, this.view.view());
      return;
    }
    if (!this.me || !this.view) {
      render(root, h("main", { id: "main", class: "alone" }, this.error ? problem(this.error) : h("p", { class: "empty" }, "Loading…")));
      return;
    }
    const state = live.state();
    render(
      root,
      h(
        "div",
        { class: `frame ${state === "away" ? "away" : ""}` },
        h("header", { class: "top" }, this.brand(), h("div", { id: "search", role: "search" }, this.search.view()), this.status(state), this.who()),
        h(
          "nav",
          { class: "areas", "aria-label": "Areas" },
          AREAS.map(([area, label, key]) =>
            h("a", { key: label, href: area ? place([area]) : "#/", "aria-current": this.area === area ? "page" : null, title: `g ${key}` }, label),
          ),
        ),
        h("main", { id: "main", tabindex: "-1", class: this.view.fill ? "fill" : "" }, this.away(state), this.view.view()),
      ),
    );
  }

  brand() {
    return h(
      "div",
      { class: "brand" },
      h("a", { href: "#/", "aria-label": "maitred: overview" }, h("span", { class: "mark", "aria-hidden": "true" }), h("b", {}, "maitred")),
      this.namespaces.length > 1 || this.namespace
        ? h(
            "select",
            { "aria-label": "Namespace", class: "namespace", value: this.namespace, onchange: (event) => this.setNamespace(event.target.value) },
            h("option", { key: "", value: "", selected: this.namespace === "" }, "all namespaces"),
            this.namespaces.map((one) => h("option", { key: one, value: one, selected: this.namespace === one }, one)),
          )
        : null,
    );
  }

  status(state) {
    const text = { live: "Live", paused: "Paused", away: "Reconnecting" }[state];
    const title = {
      live: live.isPinned() ? "Updates go on without the focus. Click: pause when this window is not used." : "Updates as things change. Click: go on without the focus too.",
      paused: "This window is not used, so nothing is asked of the node. Click: go on.",
      away: "The gateway or its node does not answer; trying again.",
    }[state];
    return [
      h(
        "button",
        { type: "button", class: `status ${state}`, title, "aria-label": text, "aria-pressed": String(live.isPinned()), onclick: () => live.pin(!live.isPinned()) },
        h("i", {}),
        h("span", {}, text),
        live.isPinned() ? h("small", {}, "pinned") : null,
      ),
      h("span", { class: "unseen", role: "status" }, text),
    ];
  }

  away(state) {
    if (state !== "away") return null;
    const seconds = (Date.now() - live.brokenSince()) / 1_000;
    return h("p", { key: "away", class: "note bad", role: "status" }, `Reconnecting: the gateway or its node does not answer. What you see is ${duration(Math.max(1, seconds))} old.`);
  }

  who() {
    const themes = { auto: "Theme: as the system", dark: "Theme: dark", light: "Theme: light" };
    const granted = Object.values(this.me.permissions).flat();
    const readOnly = this.me.with_users && granted.includes("read") && granted.every((one) => LOOKING.has(one));
    return h(
      "div",
      { class: "who" },
      this.me.user ? h("span", { class: "user", title: `Release ${this.me.release}` }, this.me.user) : null,
      readOnly ? h("span", { class: "badge", title: "This user may look, and change nothing." }, "read-only") : null,
      button({ auto: "◐", dark: "●", light: "○" }[this.theme], { kind: "quiet icon", title: themes[this.theme], name: themes[this.theme], onclick: () => this.nextTheme() }),
      button("?", { kind: "quiet icon", title: "Keyboard", name: "? Keyboard", onclick: () => this.help() }),
      this.me.with_users && this.me.csrf ? button("Log out", { kind: "quiet", onclick: () => this.logOut() }) : null,
    );
  }
}

new App().start();
