// What the page is about: shapes, a counter, a text. One copy per session, shared by all tabs that show the session.

export const BOARD = { width: 640, height: 400 };
export const KINDS = ["circle", "square", "triangle"];
export const COLORS = ["red", "orange", "yellow", "green", "teal", "blue", "purple", "pink"];
export const SIZES = { small: 40, medium: 64, large: 96, big: 96 };

const PREFIX = "treadle-demo:";
const KEPT = 12; // workspaces of older sessions

const TEXT = "The treadle lifts the threads, and the shuttle flies between them.\n\nSelect any words here and ask the agent to change them.";

const fresh = () => ({
  shapes: [], selected: null, counter: 0, text: TEXT, selection: { start: 4, end: 29 },
  made: 0, // numbers the ids of shapes
  done: {}, // what the calls that changed something returned
  saved: 0,
});

export class Workspace {
  #key = "";
  #state = fresh();
  #listeners = new Set();

  constructor() {
    addEventListener("storage", ({ key, newValue }) => {
      if (key !== this.#key || !newValue) return;
      this.#state = JSON.parse(newValue);
      this.#tell();
    });
  }

  get state() {
    return this.#state;
  }

  /** Shows the workspace of a session, or an empty one that is not kept if there is none. */
  open(sessionId) {
    this.#key = sessionId ? PREFIX + sessionId : "";
    this.#state = fresh();
    try {
      Object.assign(this.#state, JSON.parse(localStorage.getItem(this.#key) ?? "{}"));
      forgetOld();
    } catch {
      // Without storage the workspace lives as long as the page.
    }
    this.#tell();
  }

  onChange(fn) {
    this.#listeners.add(fn);
    fn(this.#state);
  }

  /** Changes the state by `change(state)` and returns what that returns. */
  update(change) {
    const result = change(this.#state);
    this.#state.saved = Date.now();
    try {
      if (this.#key) localStorage.setItem(this.#key, JSON.stringify(this.#state));
    } catch {
      // see open
    }
    this.#tell();
    return result;
  }

  /**
   * Changes the state for a tool call, once: if the call is offered again, after a reload or to another tab, it gets the answer
   * of the first time.
   */
  once(callId, change) {
    const known = this.#state.done[callId];
    if (known !== undefined) return known;
    return this.update((state) => {
      const result = change(state);
      state.done[callId] = result;
      for (const id of Object.keys(state.done).slice(0, -50)) delete state.done[id];
      return result;
    });
  }

  #tell() {
    for (const fn of this.#listeners) fn(this.#state);
  }
}

function forgetOld() {
  const kept = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const age = (key) => JSON.parse(localStorage.getItem(key)).saved;
  kept.sort((a, b) => age(b) - age(a));
  for (const key of kept.slice(KEPT)) localStorage.removeItem(key);
}

// What can be done with the shapes of a state.

export function addShape(state, { kind, color = "blue", size = "medium", x, y }) {
  const spot = x === undefined || y === undefined ? freeSpot(state, SIZES[size]) : { x, y };
  const shape = { id: `${kind}-${++state.made}`, kind, color, size, x: 0, y: 0 };
  state.shapes.push(shape);
  place(shape, spot.x, spot.y);
  return shape;
}

/** Puts a shape where it is wholly on the board. */
export function place(shape, x, y) {
  const half = SIZES[shape.size] / 2;
  shape.x = Math.round(Math.min(Math.max(x, half), BOARD.width - half));
  shape.y = Math.round(Math.min(Math.max(y, half), BOARD.height - half));
}

export function removeShapes(state, shapes) {
  state.shapes = state.shapes.filter((shape) => !shapes.includes(shape));
  if (!state.shapes.some((shape) => shape.id === state.selected)) state.selected = null;
}

/** The places of a tidy board, row by row. */
export function rows(count) {
  const columns = Math.min(count, Math.max(3, Math.ceil(Math.sqrt(count * 1.6))));
  const lines = Math.ceil(count / columns);
  return Array.from({ length: count }, (_, i) => ({
    x: (BOARD.width * ((i % columns) + 0.5)) / columns,
    y: (BOARD.height * (Math.floor(i / columns) + 0.5)) / lines,
  }));
}

function freeSpot(state, size) {
  const spots = [];
  for (let x = 80; x <= 560; x += 80) for (let y = 80; y <= 320; y += 80) spots.push({ x, y });
  const fromCenter = ({ x, y }) => Math.hypot(x - BOARD.width / 2, (y - BOARD.height / 2) * 1.4);
  spots.sort((a, b) => fromCenter(a) - fromCenter(b));
  const room = (spot) => Math.min(...state.shapes.map((s) => Math.hypot(s.x - spot.x, s.y - spot.y) - (SIZES[s.size] + size) / 2));
  return spots.find((spot) => room(spot) > 8) ?? spots.reduce((best, spot) => (room(spot) > room(best) ? spot : best));
}
