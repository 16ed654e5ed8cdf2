// The login: with a user of the node and the secret, or with an API token. What is typed is sent once and kept nowhere here.

import { path, post } from "./api.js";
import { h } from "./dom.js";
import { field, problem } from "./parts.js";

export class Login {
  constructor(app) {
    this.app = app;
    this.title = "Log in";
    this.error = null;
    this.busy = false;
    this.byToken = false;
  }

  async submit(event) {
    event.preventDefault();
    if (this.busy) return;
    const form = new FormData(event.target);
    const body = this.byToken ? { token: form.get("token") } : { user: form.get("user"), secret: form.get("secret") };
    this.busy = true;
    this.error = null;
    this.app.update();
    try {
      await post(path(["session"]), body, { login: true });
      this.app.view = null;
      await this.app.start();
    } catch (error) {
      this.error = error;
    }
    this.busy = false;
    this.app.update();
  }

  view() {
    return h(
      "main",
      { id: "main", class: "alone" },
      h(
        "form",
        { class: "login", onsubmit: (event) => this.submit(event) },
        h("h1", {}, h("span", { class: "mark", "aria-hidden": "true" }), "maitred"),
        this.byToken
          ? field("API token", h("input", { key: "token", name: "token", type: "password", autocomplete: "off", required: true, made: (el) => el.focus() }))
          : [
              field("User", h("input", { key: "user", name: "user", autocomplete: "username", spellcheck: "false", required: true, made: (el) => requestAnimationFrame(() => el.focus()) })),
              field("Secret", h("input", { key: "secret", name: "secret", type: "password", autocomplete: "current-password", required: true })),
            ],
        this.error ? problem(this.error) : null,
        h("button", { type: "submit", class: "button primary", disabled: this.busy }, this.busy ? "Logging in…" : "Log in"),
        h(
          "button",
          {
            type: "button",
            class: "button quiet",
            onclick: () => {
              this.byToken = !this.byToken;
              this.error = null;
              this.app.update();
            },
          },
          this.byToken ? "With a user and a secret" : "With an API token",
        ),
      ),
    );
  }
}
