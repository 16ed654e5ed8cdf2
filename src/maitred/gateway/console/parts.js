// The small parts that all views share: buttons, badges, notes, dialogs, messages.

import { h, render } from "./dom.js";
import { count, plural } from "./format.js";

// A button; `denied` is the reason why this user cannot use it. It can be focused then, so that the reason can be read.
// `name` is what screen readers say, where the label is a symbol or stands on several buttons; it has the label in it.
export function button(label, { onclick, denied = "", kind = "", title = "", name = null, busy = false, key = null, pressed } = {}) {
  return h(
    "button",
    {
      key,
      type: "button",
      class: `button ${kind}`,
      title: denied || title || null,
      "aria-label": name,
      "aria-disabled": denied || busy ? "true" : null,
      "aria-pressed": pressed === undefined ? null : String(pressed),
      onclick: (event) => {
        event.stopPropagation();
        if (denied) say(denied, "bad");
        else if (!busy) onclick(event);
      },
    },
    label,
  );
}

// From so many letters on a name may be cut.
const LONG = 20;

export function link(to, label, kind = "") {
  // A name that is cut can still be read.
  const title = typeof label === "string" && label.length > LONG ? label : null;
  return h("a", { href: to, class: kind, title }, label);
}

export function badge(text, kind = "", title = null) {
  return h("span", { class: `badge ${kind}`, title }, text);
}

export function problem(error) {
  return h("p", { class: "problem", role: "alert" }, h("strong", {}, error.message), error.remedy ? ` ${error.remedy}` : "");
}

export function empty(...text) {
  return h("p", { class: "empty" }, ...text);
}

// A figure with its name, as in the strips on top of pages.
export function fact(name, value, { kind = "", title = null, sub = null } = {}) {
  return h(
    "div",
    { class: `fact ${kind}`, title },
    h("dt", {}, name),
    h("dd", {}, value, sub === null ? null : h("small", {}, sub)),
  );
}

export function field(label, control, hint = "") {
  return h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null);
}

// A slider and a number field for one value, which follow each other: the slider is quick, and the field takes values between
// and beyond those of the slider. `scale` has `min` and `max` of the slider, `at(value)`: the position that is nearest to a
// value, `of(position)`: its value, `says(value)`: the value in words, for screen readers, and `marks`: words below positions.
// Null stands for an empty field.
export function sliding(label, { name, value, scale, changed, hint = "", ...limits }) {
  const shown = (one) => (one === null ? "" : String(one));
  const place = (position) => (position - scale.min) / (scale.max - scale.min);
  return h(
    "div",
    { class: "field" },
    h("label", { for: `number-${name}` }, label),
    h(
      "div",
      { class: "slider" },
      h("input", {
        type: "range",
        min: String(scale.min),
        max: String(scale.max),
        value: String(scale.at(value)),
        name: `slider-${name}`,
        "aria-label": `${label}, slider`,
        "aria-valuetext": scale.says(value),
        "aria-describedby": hint ? `hint-${name}` : null,
        oninput: (event) => {
          const chosen = scale.of(Number(event.target.value));
          event.target.nextElementSibling.value = shown(chosen);
          changed(chosen);
        },
      }),
      h("input", {
        ...limits,
        type: "number",
        id: `number-${name}`,
        name,
        // Not described anew after each key: 1.05 is 1.0 while it is changed to 1.07, which must not become 1.
        made: (element) => (element.value = shown(value)),
        "aria-describedby": hint ? `hint-${name}` : null,
        oninput: (event) => {
          // A number that is not typed whole yet is no empty field; the browser does not submit it.
          if (event.target.validity.badInput) return;
          changed(event.target.value === "" ? null : Number(event.target.value));
        },
      }),
      scale.marks
        ? h("div", { class: "marks", "aria-hidden": "true" }, scale.marks.map(([position, text]) => h("span", { key: text, style: { left: `${(place(position) * 100).toFixed(2)}%` } }, text)))
        : null,
    ),
    hint ? h("small", { id: `hint-${name}` }, hint) : null,
  );
}

export function select(value, options, onchange, label) {
  return h(
    "select",
    { "aria-label": label, onchange: (event) => onchange(event.target.value), value },
    options.map(([each, name]) => h("option", { key: each, value: each, selected: each === value }, name)),
  );
}

// Parts of the cluster that did not answer, which is said beside what the others answered.
export function unreachable(list) {
  if (!list?.length) return null;
  const names = list.slice(0, 5).map((one) => one.partition ?? one.shard ?? one.node ?? one.queue ?? "?");
  const more = list.length > names.length ? ` and ${list.length - names.length} more` : "";
  const what = ["partition", "shard", "node", "queue"].find((name) => list[0][name] !== undefined) ?? "part";
  return h(
    "p",
    { class: "note warn", role: "status" },
    `Of this, ${what} ${names.join(", ")}${more} did not answer: ${list[0].error?.message ?? ""} What follows is incomplete.`,
  );
}

// Messages

const MESSAGE_MS = 7_000;
const MESSAGES_MAX = 4;
let messages = [];
let numbered = 0;

// Say what came of an action, in the corner and to screen readers.
export function say(text, kind = "") {
  const one = { number: ++numbered, text, kind };
  messages = [...messages, one].slice(-MESSAGES_MAX);
  showMessages();
  setTimeout(() => {
    messages = messages.filter((each) => each !== one);
    showMessages();
  }, MESSAGE_MS);
}

function showMessages() {
  render(
    document.getElementById("messages"),
    messages.map((one) => h("div", { key: one.number, class: `message ${one.kind}` }, one.text)),
  );
}

// Dialogs

// Show a modal dialog: `content(close, update)` describes it, and is called again by `update()`. The browser keeps the focus
// inside, closes it on Escape, and returns the focus to where it was.
export function dialog(label, content) {
  const element = document.createElement("dialog");
  element.setAttribute("aria-label", label);
  document.body.append(element);
  return new Promise((resolve) => {
    let answer = null;
    const close = (value = null) => {
      answer = value;
      element.close();
    };
    const update = () => render(element, content(close, update));
    update();
    element.addEventListener("close", () => {
      element.remove();
      resolve(answer);
    });
    element.addEventListener("click", (event) => {
      if (event.target === element) close();
    });
    element.showModal();
    element.querySelector("[data-first]")?.focus();
  });
}

// Ask before something that cannot be taken back, and for the reason, which the audit log keeps. Returns null, or the values.
export function confirm({ title, text, action, kind = "danger", fields = () => [], typed = "", check = () => "", withReason = true }) {
  const values = { reason: "" };
  let retyped = "";
  let refused = "";
  return dialog(title, (close, update) =>
    h(
      "form",
      {
        class: "dialog",
        onsubmit: (event) => {
          event.preventDefault();
          refused = check(values);
          if (refused) update();
          else if (!typed || retyped === typed) close(values);
        },
      },
      h("h2", {}, title),
      text ? h("p", {}, text) : null,
      fields(values, update),
      typed
        ? field(
            h("span", {}, "Type ", h("code", {}, typed), " to confirm"),
            h("input", {
              "data-first": true,
              autocomplete: "off",
              spellcheck: "false",
              oninput: (event) => {
                retyped = event.target.value;
                update();
              },
            }),
          )
        : null,
      withReason
        ? field(
        "Reason",
        h("input", {
          "data-first": !typed,
          name: "reason",
          maxlength: "200",
          autocomplete: "off",
          oninput: (event) => (values.reason = event.target.value),
        }),
        "For the audit log; may be empty.",
      )
        : null,
      refused ? h("p", { class: "problem", role: "alert" }, refused) : null,
      h(
        "div",
        { class: "buttons" },
        button("Back", { onclick: () => close(), kind: "quiet" }),
        h("button", { type: "submit", class: `button ${kind}`, disabled: Boolean(typed) && retyped !== typed }, action),
      ),
    ),
  );
}

// Do something to many tasks, portion by portion, and show how far it is. `portion(cursor)` returns the next answer.
export async function inPortions(title, portion, { verb = "done", counted = (answer) => answer.done ?? 0 } = {}) {
  let stopped = false;
  let over = false;
  let cursor = null;
  let total = 0;
  let problemText = "";
  const left = new Map();
  let redraw = () => {};
  const shown = dialog(title, (close, update) => {
    redraw = update;
    return h(
      "div",
      { class: "dialog" },
      h("h2", {}, title),
      h("p", { role: "status", "aria-live": "polite" }, `${count(total)} ${verb}${!over ? " so far…" : stopped && cursor !== null ? ", and stopped." : "."}`),
      over ? null : h("progress", { "aria-label": title }),
      left.size
        ? h(
            "ul",
            {},
            [...left].map(([why, number]) => h("li", { key: why }, `${plural(number, "task")} left alone: ${why}`)),
          )
        : null,
      problemText ? h("p", { class: "problem", role: "alert" }, problemText) : null,
      h(
        "div",
        { class: "buttons" },
        over
          ? button("Close", { onclick: () => close(), kind: "primary" })
          : button("Stop", { onclick: () => (stopped = true) }),
      ),
    );
  });
  // Escape closes the dialog: what nobody sees any more does not go on.
  let closed = false;
  shown.then(() => (stopped = closed = true));
  try {
    do {
      const answer = await portion(cursor);
      total += counted(answer);
      for (const why of Object.values(answer.left ?? {})) left.set(why, (left.get(why) ?? 0) + 1);
      cursor = answer.cursor ?? null;
      redraw();
    } while (cursor !== null && !stopped);
  } catch (error) {
    problemText = error.sentence ?? String(error);
  }
  over = true;
  if (closed) say(problemText || `${count(total)} ${verb}${cursor === null ? "" : ", and stopped"}.`, problemText ? "bad" : "");
  else redraw();
  await shown;
  return total;
}

// Run an action of the user: say what came of it, or why it was refused.
export async function act(work, done) {
  try {
    const answer = await work();
    if (done) say(typeof done === "function" ? done(answer) : done, "good");
    return answer;
  } catch (error) {
    say(error.sentence ?? String(error), "bad");
    return null;
  }
}


// A progress bar that says a share of something beside its number.
export function bar(value, most, kind = "") {
  const part = most > 0 ? Math.min(1, value / most) : 0;
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("i", { style: { width: `${(part * 100).toFixed(1)}%` } }));
}

// A box with text that may be long: it is cut, and shown whole on demand.
export function textBox(label, text, { most = 20_000 } = {}) {
  return h("pre", { class: "text", tabindex: "0", role: "region", "aria-label": label }, text.length > most ? `${text.slice(0, most)}\n… ${count(text.length - most)} more characters` : text);
}

// An input that suggests values. Suggestions come from `suggest(text)`; `chosen(value)` is called with what the user takes.
export class Suggesting {
  constructor({ label, placeholder, value = "", suggest, chosen, update, name = "", type = "search", first = false }) {
    Object.assign(this, { label, placeholder, value, suggest, chosen, update, name, type, first });
    this.items = [];
    this.open = false;
    this.at = -1;
    this.asked = 0;
    this.id = `suggest-${++numbered}`;
  }

  async ask() {
    const asked = ++this.asked;
    let items = [];
    try {
      items = await this.suggest(this.value);
    } catch {
      // Without suggestions the text can be typed whole.
    }
    if (asked !== this.asked) return;
    this.items = items;
    this.at = -1;
    this.update();
  }

  take(value) {
    this.value = value;
    this.open = false;
    this.asked++;
    this.chosen(value);
    this.update();
  }

  onKey(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!this.open || !this.items.length) return;
      event.preventDefault();
      event.stopPropagation();
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.at = (this.at + step + this.items.length + (this.at < 0 && step < 0 ? 1 : 0)) % this.items.length;
      this.update();
    } else if (event.key === "Enter") {
      event.preventDefault();
      const item = this.open && this.at >= 0 ? this.items[this.at] : null;
      this.take(item ? item.value : this.value);
    } else if (event.key === "Escape" && this.open) {
      event.stopPropagation();
      event.preventDefault();
      this.open = false;
      this.update();
    }
  }

  view() {
    const open = this.open && this.items.length > 0;
    return h(
      "span",
      { class: "suggesting" },
      h("input", {
        type: this.type,
        name: this.name,
        value: this.value,
        placeholder: this.placeholder,
        "aria-label": this.label,
        "data-first": this.first,
        autocomplete: "off",
        spellcheck: "false",
        role: "combobox",
        "aria-autocomplete": "list",
        "aria-expanded": String(open),
        "aria-controls": this.id,
        "aria-activedescendant": open && this.at >= 0 ? `${this.id}-${this.at}` : null,
        onfocus: () => {
          this.open = true;
          this.ask();
        },
        onblur: () => {
          this.open = false;
          this.update();
        },
        oninput: (event) => {
          this.value = event.target.value;
          this.open = true;
          this.ask();
          this.update();
        },
        onkeydown: (event) => this.onKey(event),
        onchange: () => {
          // What was typed counts when it is entered; a field that was cleared counts at once.
          if (this.value === "") this.chosen("");
        },
      }),
      h(
        "ul",
        { id: this.id, role: "listbox", "aria-label": `Suggestions: ${this.label}`, hidden: !open },
        open
          ? this.items.map((item, index) =>
              h(
                "li",
                {
                  key: item.value,
                  id: `${this.id}-${index}`,
                  role: "option",
                  "aria-selected": String(index === this.at),
                  onpointerdown: (event) => {
                    event.preventDefault();
                    this.take(item.value);
                  },
                },
                h("span", {}, item.label ?? item.value),
                item.hint ? h("small", {}, item.hint) : null,
              ),
            )
          : [],
      ),
    );
  }
}
