// Requests to the gateway that served this page.

import { parse, stringify } from "./exact.js";
import { setClock } from "./format.js";

// The page is at /console/; behind a proxy there may be more in front of it.
const ROOT = new URL("../", document.baseURI).pathname;

// The mark of the session's owner: see `session` in docs/console.md. Another page cannot know it.
let csrf = "";

export function setCsrf(mark) {
  csrf = mark ?? "";
}

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The gateway answered ${status}.`);
    this.status = status;
    this.code = error?.code ?? "";
    this.remedy = error?.remedy ?? "";
  }

  get sentence() {
    return this.remedy ? `${this.message} ${this.remedy}` : this.message;
  }
}

// The gateway could not be reached at all.
export class Away extends Refused {
  constructor() {
    super(0, { code: "unreachable", message: "The gateway cannot be reached.", remedy: "" });
  }
}

// A path with its names, which may have any characters, and with parameters that are left out if they are empty.
export function path(parts, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined || value === null || value === "" || value === false) continue;
    query.set(name, String(value));
  }
  const text = query.toString();
  return `/v1/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

async function send(method, where, { body, signal, headers } = {}) {
  let answer;
  try {
    answer = await fetch(ROOT + where.slice(1), {
      method,
      signal,
      headers: {
        Accept: "application/json",
        // With this header the gateway does not ask for Basic credentials, for which the browser would open a dialog.
        "Maitred-Csrf": csrf || "none",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : stringify(body),
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Away();
  }
  setClock(Date.parse(answer.headers.get("Date") ?? ""));
  return answer;
}

async function read(answer) {
  const text = await answer.text();
  let value = null;
  try {
    value = text ? parse(text) : null;
  } catch {
    if (answer.ok) throw new Refused(answer.status, { message: "The answer is not JSON." });
  }
  if (!answer.ok) throw new Refused(answer.status, value?.error);
  return value;
}

let sessionOver = () => {};

// Call this when a request finds that the session is over.
export function whenLoggedOut(call) {
  sessionOver = call;
}

export function loggedOut() {
  sessionOver();
}

export async function request(method, where, options) {
  try {
    return await read(await send(method, where, options));
  } catch (problem) {
    if (problem.status === 401 && !options?.login) loggedOut();
    throw problem;
  }
}

export const get = (where, options) => request("GET", where, options);
export const post = (where, body, options) => request("POST", where, { ...options, body });
export const patch = (where, body) => request("PATCH", where, { body });
export const del = (where, options) => request("DELETE", where, options);

// Read a stream of server-sent events: call `heard(event, data)` for each until the stream ends. Not an `EventSource`, which
// tells neither the status nor the reason of a refusal, and which reconnects by itself.
export async function events(where, { signal, opened, heard }) {
  const answer = await send("GET", where, { signal, headers: { Accept: "text/event-stream" } });
  if (!answer.ok) {
    if (answer.status === 401) loggedOut();
    await read(answer);
  }
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new Away();
    }
    if (piece.done) return;
    rest += piece.value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const block = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let event = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length) heard(event, parse(data.join("\n")));
    }
  }
}
