// Keeps what is on the screen up to date: one stream of events for all that the visible view shows.
//
// The stream is open only while somebody looks: it is closed when the tab is hidden, and a while after the window lost the
// focus. When it breaks, the view keeps its last data, greyed, until the gateway or its node is back.

import { Refused, events, loggedOut } from "./api.js";

// A glance at another window is no reason to reconnect; a console that is left open somewhere costs the node nothing.
export const BLURRED_MS = 20_000;

// The first attempts after a break come quickly, since a node that restarts is back within seconds.
const AGAIN_MS = [500, 1_000, 2_000, 3_000];

const INTERVAL_SECONDS = 2;

const streams = new Set();
const listeners = new Set();

let watched = document.visibilityState === "visible";
let pinned = false;
let blurTimer = 0;

// `live`: all streams are up; `paused`: nobody looks; `away`: some stream is broken.
export function state() {
  if (!watched && !pinned) return "paused";
  for (const one of streams) if (one.broken) return "away";
  return "live";
}

export function brokenSince() {
  let since = 0;
  for (const one of streams) if (one.broken && (!since || one.brokenAt < since)) since = one.brokenAt;
  return since;
}

export function onState(call) {
  listeners.add(call);
}

export function isPinned() {
  return pinned;
}

// Stay up to date without the focus too, as on a screen on the wall. A hidden tab pauses nevertheless.
export function pin(value) {
  pinned = value;
  look();
}

function tell() {
  for (const call of listeners) call();
}

function look() {
  for (const one of streams) one.look();
  tell();
}

function seen() {
  clearTimeout(blurTimer);
  const was = watched;
  watched = document.visibilityState === "visible";
  if (was !== watched) look();
}

document.addEventListener("visibilitychange", seen);
window.addEventListener("focus", seen);
window.addEventListener("pointerdown", seen);
window.addEventListener("blur", () => {
  clearTimeout(blurTimer);
  blurTimer = setTimeout(() => {
    watched = false;
    look();
  }, BLURRED_MS);
});

// Watch these GET paths: `got(index, data)` is called with each new answer, `failed(index, error)` when one is refused.
export class Live {
  constructor(got, failed, { interval = INTERVAL_SECONDS } = {}) {
    this.got = got;
    this.failed = failed;
    this.interval = interval;
    this.paths = [];
    this.broken = false;
    this.brokenAt = 0;
    this.attempts = 0;
    this.abort = null;
    this.timer = 0;
    this.bad = new Set();
    streams.add(this);
  }

  watch(paths) {
    if (paths.join("\n") === this.paths.join("\n")) return;
    this.paths = paths;
    this.bad.clear();
    this.refresh();
  }

  // Connect anew: the answers come at once, as after an action of the user.
  refresh() {
    this.stop();
    this.look();
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.abort?.abort();
    this.abort = null;
  }

  close() {
    this.stop();
    streams.delete(this);
    tell();
  }

  look() {
    // A view that was left may still refresh its stream, when the answer to an action comes.
    const wanted = streams.has(this) && this.paths.length > 0 && document.visibilityState === "visible" && (watched || pinned);
    if (!wanted) this.stop();
    else if (this.abort === null && this.timer === 0) this.run();
  }

  async run() {
    const abort = (this.abort = new AbortController());
    const where = `/v1/live?interval=${this.interval}&view=${encodeURIComponent(this.paths.join("\n"))}`;
    try {
      await events(where, {
        signal: abort.signal,
        opened: () => {},
        heard: (event, data) => {
          if (this.abort === abort) this.heard(event, data);
        },
      });
    } catch (problem) {
      if (abort !== this.abort) return;
      if (!(problem instanceof Refused)) {
        console.error(problem);
      } else if (problem.status !== 0 && problem.status < 500 && problem.status !== 429) {
        // Asking again would be refused again.
        this.abort = null;
        for (let index = 0; index < this.paths.length; index++) this.failed(index, problem);
        return;
      }
    }
    if (abort !== this.abort) return;
    this.abort = null;
    this.breakOff();
    const delay = AGAIN_MS[Math.min(this.attempts++, AGAIN_MS.length - 1)];
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.look();
    }, delay);
  }

  breakOff() {
    if (!this.broken) {
      this.broken = true;
      this.brokenAt = Date.now();
      tell();
    }
  }

  heard(event, data) {
    const index = parseInt(event, 10);
    if (event.endsWith("-error")) {
      const problem = new Refused(data.status ?? 500, data.error);
      if (problem.status >= 500 || problem.status === 429) {
        // The gateway is there, and what stands behind it is not: the last data stay, greyed.
        this.bad.add(index);
        this.breakOff();
      } else if (problem.status === 401) {
        loggedOut();
      } else {
        this.mend(index);
        this.failed(index, problem);
      }
      return;
    }
    this.mend(index);
    this.got(index, data);
  }

  mend(index) {
    this.bad.delete(index);
    this.attempts = 0;
    if (this.broken && this.bad.size === 0) {
      this.broken = false;
      tell();
    }
  }
}
