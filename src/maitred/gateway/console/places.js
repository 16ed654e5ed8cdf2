// Addresses within the console: a fragment with names and parameters, such as #/tasks/shop/mail?state=dead. It never reaches
// a server, so no log has the filters that somebody used.

export function place(parts, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) query.set(name, String(value));
  }
  const text = query.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function here() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  let names;
  try {
    names = where.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    names = [];
  }
  return { names, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function go(to) {
  location.hash = to;
}

// Change the address without a new view and without an entry in the history: after each letter of a filter.
export function note(to) {
  history.replaceState(null, "", to);
}

export const queuePlace = (namespace, queue) => place(["queues", namespace, queue]);

export const tasksPlace = (namespace, queue, filter) => place(["tasks", namespace, queue], filter);

export const deadPlace = (namespace, queue) => place(["dead", namespace, queue]);

export const taskPlace = (row) => taskPlaceById(row.id);

// "partition/sequence" of a task, as the gateway's actions want it.
export const numberOf = (row) => row.id.split("/").slice(-2).join("/");

// The place of a task by its id: namespace/queue/partition/sequence. A queue's name may have slashes.
export function taskPlaceById(id) {
  const parts = /^([^/]+)\/(.+)\/(\d+)\/(\d+)$/.exec(id.trim());
  return parts === null ? null : place(["tasks", ...parts.slice(1)]);
}

// The namespace and the queue in namespace/queue; null if it is not that.
export function queueNames(text) {
  const parts = /^([^/]+)\/(.+)$/.exec(text.trim());
  return parts === null ? null : parts.slice(1);
}
