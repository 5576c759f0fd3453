// Small things that every view needs. Text from outside only ever becomes text nodes.

export const $ = (id) => document.getElementById(id);

/** Makes an element. `props` are properties, but data-*, aria-* and role are attributes; children are nodes or text. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Makes an SVG element; all `props` are attributes. */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  check: "M3.5 8.5 6.5 11.5 12.5 4.5",
  cross: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  clock: "M8 4.5V8l2.5 1.5M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0",
  stop: "M5 5h6v6H5z",
  open: "M6 3.5 10.5 8 6 12.5",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.5 9h6l.5-9",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** A span of time as people say it: 12 ms, 1.4 s, 3 min 05 s. */
export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
}

/** The time of day of an event, to the second. */
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });

export const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** Copies text and shows on the button that it did. */
export async function copy(text, button, label) {
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = "Copying is not allowed";
  }
  const before = label.textContent;
  if (button.dataset.copied) return;
  button.dataset.copied = "true";
  label.textContent = done;
  announce(done);
  setTimeout(() => {
    label.textContent = before;
    delete button.dataset.copied;
  }, 1200);
}

/** Tells those who cannot see the page. */
export function announce(text) {
  $("announcer").textContent = text;
}
