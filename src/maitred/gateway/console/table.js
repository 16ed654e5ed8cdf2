// A table of any length: the server is asked page by page, and only the rows in sight are in the document.
//
// The pages in sight are kept up to date by the live stream; the others stay as they were loaded. All rows have one height, so
// the place of a row is a multiplication. It is a real table for screen readers, with the number of each row.

import { h } from "./dom.js";
import { get } from "./api.js";
import { Live } from "./live.js";
import { empty, problem } from "./parts.js";

const ROW_HEIGHT = 36;

// Rows beyond the edges, so that a fast finger sees no gap before the next frame.
const OVERSCAN = 10;

// The next page is loaded when so many rows are left below.
const AHEAD = 60;

let numbered = 0;

export class Table {
  // `columns`: [{name, label, cell(row), class, sort}]; `path(cursor)`: where a page is; `pick(answer)`: its rows.
  constructor({ label, columns, path, pick, key, update, open, selectable = false, rowHeight = ROW_HEIGHT, nothing, interval, onAnswer, rowClass }) {
    Object.assign(this, { label, columns, path, pick, key, update, open, selectable, rowHeight, nothing, onAnswer, rowClass });
    // Another table's element is not taken over: it is measured when it is made.
    this.id = `table-${++numbered}`;
    this.pages = [{ cursor: null, rows: null, next: null }];
    this.sort = "";
    this.onSort = null;
    this.error = null;
    this.loading = false;
    this.scrollTop = 0;
    this.height = 800;
    this.focused = null;
    this.selected = new Map();
    this.answer = null;
    this.watching = [];
    this.live = new Live(
      (index, data) => this.take(this.watching[index], data),
      (index, error) => {
        this.error = error;
        update();
      },
      { interval },
    );
    this.watch();
  }

  // Forget all pages, and begin anew: the filter or the order is another one.
  restart() {
    this.pages = [{ cursor: null, rows: null, next: null }];
    this.error = null;
    this.selected.clear();
    this.focused = null;
    this.scrollTop = 0;
    if (this.element) this.element.scrollTop = 0;
    this.watching = [];
    this.watch();
    this.update();
  }

  refresh() {
    this.live.refresh();
  }

  close() {
    this.live.close();
  }

  take(page, answer) {
    if (!this.pages.includes(page)) return;
    const known = page.next;
    page.rows = this.pick(answer);
    page.next = answer.cursor ?? null;
    this.error = null;
    const at = this.pages.indexOf(page);
    if (at === 0) {
      this.answer = answer;
      this.onAnswer?.(answer);
    }
    const isLast = at === this.pages.length - 1;
    if (!isLast && known !== page.next && this.watching.at(-1) === page) {
      // The pages behind began where this one ended before.
      this.pages.length = at + 1;
    }
    this.update();
  }

  get rows() {
    const seen = new Set();
    const all = [];
    for (const page of this.pages) {
      for (const row of page.rows ?? []) {
        const key = this.key(row);
        if (!seen.has(key)) {
          seen.add(key);
          all.push(row);
        }
      }
    }
    return all;
  }

  get isComplete() {
    return this.pages.at(-1).rows !== null && this.pages.at(-1).next === null;
  }

  // The pages that have rows in sight.
  watch() {
    const first = Math.floor(this.scrollTop / this.rowHeight);
    const last = first + Math.ceil(this.height / this.rowHeight);
    let start = 0;
    const inSight = [];
    for (const page of this.pages) {
      const size = page.rows?.length ?? 1;
      if (start <= last && start + size > first) inSight.push(page);
      start += size;
    }
    this.watching = (inSight.length ? inSight : [this.pages[0]]).slice(0, 3);
    this.live.watch(this.watching.map((page) => this.path(page.cursor)));
  }

  async more() {
    const last = this.pages.at(-1);
    if (this.loading || last.rows === null || last.next === null) return;
    this.loading = true;
    try {
      const answer = await get(this.path(last.next));
      if (this.pages.at(-1) === last) {
        this.pages.push({ cursor: last.next, rows: this.pick(answer), next: answer.cursor ?? null });
      }
    } catch (error) {
      if (error.name !== "AbortError") this.error = error;
    }
    this.loading = false;
    this.update();
  }

  scrolled() {
    this.scrollTop = this.element.scrollTop;
    this.height = this.element.clientHeight || this.height;
    this.update();
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.watch(), 300);
  }

  onKey(event, rows) {
    const at = rows.findIndex((row) => this.key(row) === this.focused);
    const page = Math.max(1, Math.floor(this.height / this.rowHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (event.target.closest("input, select, textarea, button") && event.key !== "Escape" && !(event.key in steps)) return;
    if (event.key in steps && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const to = Math.max(0, Math.min(rows.length - 1, (at < 0 ? -1 : at) + steps[event.key]));
      if (rows[to] === undefined) return;
      this.focused = this.key(rows[to]);
      const top = to * this.rowHeight;
      const head = this.element.querySelector("thead").offsetHeight;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      const bottom = top + this.rowHeight + head;
      if (bottom > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = bottom - this.element.clientHeight;
      this.scrollTop = this.element.scrollTop;
      this.focusSoon = true;
      this.update();
    } else if (event.key === "Enter" && at >= 0 && event.target.closest("tr")) {
      event.preventDefault();
      this.open?.(rows[at]);
    } else if (event.key === " " && at >= 0 && this.selectable) {
      event.preventDefault();
      this.toggle(rows[at]);
    }
  }

  toggle(row) {
    const key = this.key(row);
    if (this.selected.has(key)) this.selected.delete(key);
    else this.selected.set(key, row);
    this.update();
  }

  toggleAll(rows) {
    if (rows.every((row) => this.selected.has(this.key(row)))) this.selected.clear();
    else for (const row of rows) this.selected.set(this.key(row), row);
    this.update();
  }

  header(column) {
    const sorted = column.sort !== undefined && column.sort === this.sort;
    const label = column.sort === undefined || this.onSort === null
      ? h("span", {}, column.label)
      : h("button", { type: "button", class: "sort", onclick: () => this.onSort(column.sort) }, column.label, h("span", { "aria-hidden": "true" }, sorted ? " ▾" : ""));
    return h(
      "th",
      { key: column.name, scope: "col", class: column.class, title: column.title, "aria-sort": sorted ? (column.sort === "name" ? "ascending" : "descending") : null },
      label,
    );
  }

  view() {
    const rows = this.rows;
    const first = Math.max(0, Math.floor(this.scrollTop / this.rowHeight) - OVERSCAN);
    const last = Math.min(rows.length, Math.ceil((this.scrollTop + this.height) / this.rowHeight) + OVERSCAN);
    if (!this.isComplete && rows.length && last > rows.length - AHEAD) queueMicrotask(() => this.more());
    const visible = rows.slice(first, last);
    const tabbable = visible.some((row) => this.key(row) === this.focused) ? this.focused : visible.length ? this.key(visible[0]) : null;
    if (this.focusSoon) {
      this.focusSoon = false;
      queueMicrotask(() => this.element?.querySelector("tr[tabindex='0']")?.focus({ preventScroll: true }));
    }
    const loaded = this.pages[0].rows !== null;
    const width = this.columns.length + (this.selectable ? 1 : 0);
    return h(
      "div",
      {
        key: this.id,
        class: "scroller",
        made: (element) => {
          this.element = element;
          this.height = element.clientHeight || this.height;
          this.sizes = new ResizeObserver(() => {
            this.height = element.clientHeight || this.height;
            this.update();
          });
          this.sizes.observe(element);
        },
        gone: () => this.sizes?.disconnect(),
        onscroll: () => this.scrolled(),
        onkeydown: (event) => this.onKey(event, rows),
      },
      h(
        "table",
        { class: "rows", "aria-label": this.label, "aria-rowcount": this.isComplete ? rows.length + 1 : -1, "aria-busy": loaded ? null : "true" },
        h(
          "thead",
          {},
          h(
            "tr",
            { "aria-rowindex": "1" },
            this.selectable
              ? h(
                  "th",
                  { scope: "col", class: "check" },
                  h("input", {
                    type: "checkbox",
                    "aria-label": "Select all loaded rows",
                    checked: rows.length > 0 && rows.every((row) => this.selected.has(this.key(row))),
                    onchange: () => this.toggleAll(rows),
                  }),
                )
              : null,
            this.columns.map((column) => this.header(column)),
          ),
        ),
        h(
          "tbody",
          {},
          first > 0 ? h("tr", { key: " above", class: "spacer", "aria-hidden": "true" }, h("td", { colspan: width, style: { height: `${first * this.rowHeight}px` } })) : null,
          visible.map((row, index) => {
            const key = this.key(row);
            return h(
              "tr",
              {
                key,
                "aria-rowindex": first + index + 2,
                "aria-selected": this.selectable ? String(this.selected.has(key)) : null,
                tabindex: key === tabbable ? "0" : "-1",
                class: `${this.open ? "opens" : ""} ${this.rowClass?.(row) ?? ""}`,
                style: { height: `${this.rowHeight}px` },
                onfocus: () => {
                  if (this.focused !== key) {
                    this.focused = key;
                    this.update();
                  }
                },
                onclick: (event) => {
                  if (!this.open || event.target.closest("a, button, input, select, label")) return;
                  if (window.getSelection()?.toString()) return;
                  this.open(row);
                },
              },
              this.selectable
                ? h(
                    "td",
                    { class: "check" },
                    h("input", { type: "checkbox", "aria-label": `Select ${key}`, tabindex: "-1", checked: this.selected.has(key), onchange: () => this.toggle(row) }),
                  )
                : null,
              this.columns.map((column) => h("td", { key: column.name, class: column.class }, column.cell(row))),
            );
          }),
          last < rows.length ? h("tr", { key: " below", class: "spacer", "aria-hidden": "true" }, h("td", { colspan: width, style: { height: `${(rows.length - last) * this.rowHeight}px` } })) : null,
        ),
      ),
      this.error ? problem(this.error) : null,
      !loaded && !this.error ? empty("Loading…") : null,
      loaded && !rows.length && this.isComplete ? (typeof this.nothing === "function" ? this.nothing() : empty(this.nothing ?? "Nothing is here.")) : null,
      loaded && this.loading ? empty("Loading more…") : null,
    );
  }
}
