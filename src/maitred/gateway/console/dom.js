// Elements from descriptions: h() describes an element, render() makes the page equal to the description.
//
// A view describes itself whole after each change, and only what differs is written to the page, so the focus, the
// selection of text and the scroll positions stay. Everything that users can set (names, errors, arguments, reasons) passes
// through here as text nodes and attributes; nothing is ever parsed as HTML. The page's policy makes the browser refuse it, too.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  const flat = [];
  collect(children, flat);
  return { tag, props: props ?? {}, children: flat, key: props?.key ?? null, el: null };
}

function collect(children, into) {
  for (const child of children) {
    if (Array.isArray(child)) collect(child, into);
    else if (child === null || child === undefined || child === false || child === true) continue;
    else if (typeof child === "object") into.push(child);
    else into.push({ tag: "", text: String(child), key: null, el: null });
  }
}

const shown = new WeakMap();

// Make the children of `root` equal to these descriptions.
export function render(root, ...children) {
  const fresh = [];
  collect(children, fresh);
  patchChildren(root, shown.get(root) ?? [], fresh, false);
  shown.set(root, fresh);
}

function patchChildren(parent, old, fresh, isSvg) {
  const keyed = new Map();
  const plain = [];
  for (const one of old) {
    if (one.key !== null) keyed.set(one.key, one);
    else plain.push(one);
  }
  const used = new Set();
  let nextPlain = 0;
  for (const one of fresh) {
    let before = null;
    if (one.key !== null) {
      before = keyed.get(one.key) ?? null;
    } else {
      // The next one of the same kind: a child that comes or goes before it does not remake all that follow.
      for (let at = nextPlain; at < Math.min(plain.length, nextPlain + 4); at++) {
        if (plain[at].tag === one.tag) {
          before = plain[at];
          nextPlain = at + 1;
          break;
        }
      }
    }
    if (before !== null && before.tag === one.tag && !used.has(before)) {
      used.add(before);
      patch(before, one, isSvg);
    } else {
      create(one, isSvg);
    }
  }
  for (const one of old) {
    if (!used.has(one)) {
      one.props?.gone?.(one.el);
      one.el.remove();
    }
  }
  // Backwards, so that what stays in its place is not moved: an element that moves loses its focus.
  let following = null;
  for (let at = fresh.length - 1; at >= 0; at--) {
    const el = fresh[at].el;
    if (el.parentNode !== parent || el.nextSibling !== following) parent.insertBefore(el, following);
    following = el;
  }
}

function create(one, isSvg) {
  if (one.tag === "") {
    one.el = document.createTextNode(one.text);
    return;
  }
  const svg = isSvg || one.tag === "svg";
  one.el = svg ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
  patchChildren(one.el, [], one.children, svg);
  for (const [name, value] of Object.entries(one.props)) set(one.el, name, undefined, value, svg);
  one.props.made?.(one.el);
}

function patch(before, one, isSvg) {
  const el = (one.el = before.el);
  if (one.tag === "") {
    if (before.text !== one.text) el.data = one.text;
    return;
  }
  const svg = isSvg || one.tag === "svg";
  patchChildren(el, before.children, one.children, svg);
  for (const name of Object.keys(before.props)) {
    if (!(name in one.props)) set(el, name, before.props[name], undefined, svg);
  }
  for (const [name, value] of Object.entries(one.props)) {
    if (before.props[name] !== value) set(el, name, before.props[name], value, svg);
  }
}

const AS_PROPERTY = new Set(["value", "checked", "selected", "indeterminate"]);
const NOT_SHOWN = new Set(["key", "made", "gone"]);
const LINKS = new Set(["href", "src", "action", "formaction", "srcdoc", "xlink:href", "style"]);

function set(el, name, before, value, svg) {
  if (NOT_SHOWN.has(name)) return;
  if (name.startsWith("on")) {
    listen(el, name.slice(2), value);
  } else if (name === "style") {
    // Through the object model: the page's policy forbids style attributes.
    for (const part of Object.keys(before ?? {})) if (!(part in (value ?? {}))) el.style.removeProperty(part);
    for (const [part, text] of Object.entries(value ?? {})) {
      if (before?.[part] !== text) el.style.setProperty(part, text);
    }
  } else if (AS_PROPERTY.has(name) && !svg) {
    if (el[name] !== value) el[name] = value ?? "";
  } else if (value === undefined || value === null || value === false) {
    el.removeAttribute(name);
  } else if (LINKS.has(name)) {
    // Links lead to places in the console, whose address is a fragment.
    if (name === "href" && String(value).startsWith("#")) el.setAttribute("href", value);
    else throw new Error(`no ${name} but a fragment is allowed`);
  } else {
    el.setAttribute(name, value === true ? "" : String(value));
  }
}

// One listener for each event of an element, which calls the handler of the newest description.
function listen(el, event, handler) {
  const handlers = (el.maitredHandlers ??= new Map());
  if (!handlers.has(event)) el.addEventListener(event, (happened) => handlers.get(event)?.(happened));
  handlers.set(event, handler);
}

// Return a function that calls `draw` once before the next frame, however often it is called.
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
