// Add a task, or ask a query, by a form that is made of the handler's signature; also a task once more with other arguments.

import { get, path, post } from "./api.js";
import { parse, stringify } from "./exact.js";
import { h } from "./dom.js";
import { json } from "./format.js";
import { badge, button, empty, field, link, problem, select, textBox } from "./parts.js";
import { queuePlace, taskPlace } from "./places.js";

const OPTIONS = [
  ["delay", "Delay, in seconds", "Not before so many seconds from now."],
  ["priority", "Priority", "From 0, served first, to 4; 2 unless told."],
  ["retries", "Retries", "Further attempts after one that failed; 3 unless told."],
  ["timeout", "Timeout, in seconds", "For one attempt; empty: none."],
  ["expires", "Expires, in seconds", "Not begun by then, it never is; empty: never."],
];

// What a type is called, as in Python.
export function typeName(type) {
  if (typeof type === "string") return type;
  if (!Array.isArray(type)) return "any";
  const [kind, ...rest] = type;
  if (kind === "union") return rest.map(typeName).join(" | ");
  if (kind === "values") return rest.map((value) => JSON.stringify(value)).join(" | ");
  if (kind === "object") return `{${(rest[0] ?? []).map(([name, each]) => `${name}: ${typeName(each)}`).join(", ")}}`;
  return `${kind}[${rest.map(typeName).join(", ")}]`;
}

// What a person typed, as a value; raises an error with a sentence.
export function valueOf(parameter, text) {
  const type = parameter.type;
  if (type === "str" || type === "datetime" || type === "date" || type === "time" || type === "uuid" || type === "decimal") return text;
  if (type === "int") {
    if (!/^[+-]?\d+$/.test(text.trim())) throw new Error(`${parameter.name} has to be a whole number.`);
    const number = Number(text);
    return Number.isSafeInteger(number) ? number : BigInt(text.trim().replace("+", ""));
  }
  if (type === "float") {
    if (text.trim() === "" || !Number.isFinite(Number(text))) throw new Error(`${parameter.name} has to be a number.`);
    return Number(text);
  }
  try {
    return parse(text);
  } catch {
    throw new Error(`${parameter.name} has to be JSON, such as ${JSON.stringify("text")}, 5 or [1, 2].`);
  }
}

export class Form {
  constructor(app, namespace, queue, query) {
    Object.assign(this, { app, namespace, queue });
    this.title = `Enqueue to ${namespace}/${queue}`;
    this.like = query.like ?? "";
    this.functions = null;
    this.chosen = 0;
    this.texts = new Map();
    this.given = new Set();
    this.options = {};
    this.raw = "[]";
    this.error = null;
    this.refused = "";
    this.result = null;
    this.busy = false;
    this.load();
  }

  async load() {
    try {
      this.functions = (await get(path([this.namespace, "queues", this.queue, "handlers"]))).functions;
      if (this.like) await this.copy();
    } catch (error) {
      this.error = error;
      this.functions ??= [];
    }
    this.app.update();
  }

  async copy() {
    const found = await get(path([this.namespace, "queues", this.queue, "tasks", ...this.like.split("/"), "history"], { reveal: "true" }));
    const values = found.task.arguments;
    const at = this.functions.findIndex((one) => one.function === found.function);
    if (at >= 0) this.chosen = at;
    const parameters = this.functions[this.chosen]?.parameters ?? [];
    if (values === null || values === undefined) return;
    this.raw = json(values);
    parameters.forEach((parameter, index) => {
      const value = Array.isArray(values) ? values[index] : values[parameter.name];
      // A hidden argument is not in the answer: it has to be typed again.
      if (value === undefined || parameter.hidden) return;
      this.given.add(parameter.name);
      this.texts.set(parameter.name, typeof value === "string" && parameter.type === "str" ? value : stringify(value));
    });
  }

  body() {
    const chosen = this.functions[this.chosen];
    if (!chosen) return parse(this.raw);
    const body = {};
    for (const parameter of chosen.parameters) {
      if (!parameter.required && !this.given.has(parameter.name)) continue;
      const text = this.texts.get(parameter.name) ?? "";
      body[parameter.name] = parameter.type === "bool" ? text === "true" : valueOf(parameter, text);
    }
    return body;
  }

  async send(kind) {
    this.refused = "";
    this.result = null;
    let body;
    try {
      body = this.body();
    } catch (problemFound) {
      this.refused = problemFound.message;
      this.app.update();
      return;
    }
    this.busy = true;
    this.app.update();
    try {
      const where = [this.namespace, "queues", this.queue, kind === "ask" ? "query" : "tasks"];
      const answer = await post(path(where, kind === "ask" ? {} : this.options), body);
      this.result = { kind, answer };
    } catch (error) {
      this.result = { kind, error };
    }
    this.busy = false;
    this.app.update();
  }

  view() {
    const head = h("div", { class: "head" }, h("h1", {}, link(queuePlace(this.namespace, this.queue), `${this.namespace}/${this.queue}`), h("span", { class: "separator" }, "/"), this.like ? "run again with other arguments" : "enqueue or ask"));
    if (this.functions === null) return [head, empty("Loading…")];
    const chosen = this.functions[this.chosen];
    const produce = this.app.denied(this.namespace, "produce");
    const query = this.app.denied(this.namespace, "query");
    return [
      head,
      this.error ? problem(this.error) : null,
      h(
        "form",
        { class: "card form", onsubmit: (event) => { event.preventDefault(); if (!produce) this.send("enqueue"); } },
        this.functions.length > 1 ? field("Handler", select(String(this.chosen), this.functions.map((one, at) => [String(at), one.function]), (at) => { this.chosen = Number(at); this.app.update(); }, "Handler")) : chosen ? h("p", { class: "lead" }, "Handler ", h("code", {}, chosen.function)) : null,
        chosen ? this.fields(chosen) : this.rawField(),
        h(
          "details",
          {},
          h("summary", {}, "Options of the task"),
          OPTIONS.map(([name, label, hint]) => field(label, h("input", { key: name, type: "number", min: "0", step: "any", name: `option-${name}`, value: this.options[name] ?? "", oninput: (event) => { this.options[name] = event.target.value; } }), hint)),
        ),
        this.refused ? h("p", { class: "problem", role: "alert" }, this.refused) : null,
        h("div", { class: "buttons" }, button("Enqueue a task", { key: "enqueue", kind: "primary", denied: produce, busy: this.busy, onclick: () => this.send("enqueue") }), button("Ask a query", { key: "ask", denied: query, busy: this.busy, onclick: () => this.send("ask") })),
      ),
      this.outcome(),
    ];
  }

  fields(chosen) {
    if (!chosen.parameters.length) return empty("It takes no arguments.");
    return chosen.parameters.map((parameter) => {
      const name = parameter.name;
      const given = parameter.required || this.given.has(name);
      const text = this.texts.get(name) ?? "";
      const change = (value) => {
        this.texts.set(name, value);
        if (!parameter.required && !this.given.has(name)) this.given.add(name);
        this.app.update();
      };
      const common = { key: name, name: `argument-${name}`, value: text, spellcheck: "false", autocomplete: "off", oninput: (event) => change(event.target.value) };
      const values = Array.isArray(parameter.type) && parameter.type[0] === "values" ? parameter.type.slice(1) : null;
      let control;
      if (parameter.type === "bool") control = select(text || "false", [["false", "false"], ["true", "true"]], change, name);
      else if (values) control = select(text, [["", "choose…"], ...values.map((value) => [JSON.stringify(value), String(value)])], change, name);
      else if (parameter.hidden) control = h("input", { ...common, type: "password" });
      else if (parameter.type === "int" || parameter.type === "float") control = h("input", { ...common, inputmode: parameter.type === "int" ? "numeric" : "decimal" });
      else if (parameter.type === "str") control = h("input", { ...common, type: "text" });
      else control = h("textarea", { ...common, rows: "2", placeholder: "JSON" });
      return h(
        "div",
        { key: name, class: "argument" },
        field([h("code", {}, name), " ", h("span", { class: "dim" }, typeName(parameter.type)), parameter.hidden ? badge("hidden") : null], control),
        parameter.required ? null : h("label", { class: "check" }, h("input", { type: "checkbox", name: `given-${name}`, checked: given, onchange: (event) => { if (event.target.checked) this.given.add(name); else this.given.delete(name); this.app.update(); } }), "given; otherwise its default applies"),
      );
    });
  }

  rawField() {
    return [
      h("p", { class: "note" }, "No worker has told the signature of a handler of this queue, so the arguments are one JSON value: an array in their order, or an object by name."),
      field("Arguments", h("textarea", { name: "raw", rows: "4", value: this.raw, spellcheck: "false", oninput: (event) => { this.raw = event.target.value; } })),
    ];
  }

  outcome() {
    if (!this.result) return null;
    const { kind, answer, error } = this.result;
    if (error) return problem(error);
    if (kind === "ask") return h("section", { class: "card", "aria-label": "Answer" }, h("h2", {}, "Answer"), textBox("Answer", json(answer)));
    return h("p", { class: "note good", role: "status" }, "The task is added: ", link(taskPlace(answer), answer.id), ".");
  }
}

