// The board: shapes that can be selected, dragged, moved with the arrow keys and removed, by the person as by the agent.

import { $, announce, el, icon, svg } from "./dom.js";
import { BOARD, COLORS, KINDS, SIZES, addShape, place, removeShapes } from "./workspace.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const outline = {
  circle: () => svg("circle", { r: 50 }),
  square: () => svg("rect", { x: -46, y: -46, width: 92, height: 92, rx: 6 }),
  triangle: () => svg("path", { d: "M0 -48 50 42 -50 42Z" }),
};

export class Board {
  #workspace;
  #nodes = new Map();
  #color = "blue";
  #swatches = new Map();
  #remove;

  constructor(workspace) {
    this.#workspace = workspace;
    this.#tools();
    $("board").addEventListener("pointerdown", ({ target }) => target.closest(".shape") || this.#select(null));
    workspace.onChange((state) => this.#render(state));
  }

  #tools() {
    const add = KINDS.map((kind) => {
      const button = el("button", { type: "button", className: "tool", title: `Add a ${kind}`, "aria-label": `Add a ${kind}` },
        svg("svg", { class: "icon", viewBox: "-62 -62 124 124", "aria-hidden": "true" }, outline[kind]()));
      button.addEventListener("click", () => this.#change((state) => (state.selected = addShape(state, { kind, color: this.#color }).id)));
      return button;
    });
    const colors = COLORS.map((color) => {
      const button = el("button", { type: "button", className: "tool", title: color, "aria-label": color }, el("span", { className: `swatch ${color}` }));
      button.addEventListener("click", () => this.#paint(color));
      this.#swatches.set(color, button);
      return button;
    });
    this.#remove = el("button", { type: "button", className: "tool", title: "Remove the selected shape", "aria-label": "Remove the selected shape" }, icon("trash"));
    this.#remove.addEventListener("click", () => this.#removeSelected());
    const group = (label, ...buttons) => el("div", { className: "tool-group", role: "group", "aria-label": label }, ...buttons);
    $("board-tools").append(group("Shapes", ...add), group("Selection", this.#remove), group("Colour", ...colors));
    this.#paint(this.#color);
  }

  #change(change) {
    this.#workspace.update(change);
  }

  #paint(color) {
    this.#color = color;
    for (const [name, button] of this.#swatches) button.setAttribute("aria-pressed", String(name === color));
    const { shapes, selected } = this.#workspace.state;
    if (shapes.some((s) => s.id === selected && s.color !== color)) this.#change((state) => (state.shapes.find((s) => s.id === selected).color = color));
  }

  #select(id) {
    if (this.#workspace.state.selected !== id) this.#change((state) => (state.selected = id));
  }

  #removeSelected() {
    const { shapes, selected } = this.#workspace.state;
    const at = shapes.findIndex((s) => s.id === selected);
    if (at < 0) return;
    const hadFocus = this.#nodes.get(selected)?.contains(document.activeElement);
    this.#change((state) => removeShapes(state, [state.shapes[at]]));
    announce(`Removed ${selected}`);
    const next = this.#workspace.state.shapes[Math.min(at, shapes.length - 2)];
    if (hadFocus && next) this.#nodes.get(next.id).focus();
  }

  #render(state) {
    $("board-empty").hidden = state.shapes.length > 0;
    this.#remove.disabled = !state.selected;
    for (const [id, node] of this.#nodes) {
      if (state.shapes.some((s) => s.id === id)) continue;
      node.remove();
      this.#nodes.delete(id);
    }
    for (const shape of state.shapes) {
      const node = this.#nodes.get(shape.id) ?? this.#make(shape);
      const chosen = shape.id === state.selected;
      node.setAttribute("class", `shape ${shape.color}`);
      node.setAttribute("aria-pressed", String(chosen));
      node.setAttribute("aria-label", `${shape.color} ${shape.kind}, ${shape.id}, ${shape.x} across, ${shape.y} down`);
      node.style.transform = `translate(${shape.x}px, ${shape.y}px)`;
    }
  }

  #make({ id, kind, size }) {
    const scale = SIZES[size] / 100;
    const body = svg("g", { class: "shape-body", transform: `scale(${scale})` }, outline[kind]());
    const frame = SIZES[size] / 2 + 7;
    const ring = svg("rect", { class: "shape-ring", x: -frame, y: -frame, width: frame * 2, height: frame * 2, rx: 8 });
    const node = svg("g", { tabindex: 0, role: "button", "data-shape": id }, ring, svg("g", { class: "shape-pop" }, body));
    node.addEventListener("focus", () => this.#select(id));
    node.addEventListener("keydown", (event) => this.#key(event, id));
    node.addEventListener("pointerdown", (event) => this.#drag(event, id, node));
    $("shapes").append(node);
    this.#nodes.set(id, node);
    return node;
  }

  #key(event, id) {
    const arrow = ARROWS[event.key];
    if (arrow) {
      const step = event.shiftKey ? 1 : 10;
      this.#change((state) => {
        const shape = state.shapes.find((s) => s.id === id);
        place(shape, shape.x + arrow[0] * step, shape.y + arrow[1] * step);
      });
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.#removeSelected();
    } else if (event.key === "Enter" || event.key === " ") {
      this.#select(this.#workspace.state.selected === id ? null : id);
    } else {
      return;
    }
    event.preventDefault();
  }

  #drag(down, id, node) {
    if (down.button !== 0) return;
    this.#select(id);
    const shape = this.#workspace.state.shapes.find((s) => s.id === id);
    const scale = BOARD.width / $("board").getBoundingClientRect().width;
    const from = { x: shape.x, y: shape.y };
    node.setPointerCapture(down.pointerId);
    node.dataset.dragged = "true";
    const stop = new AbortController();
    const on = (type, fn) => node.addEventListener(type, fn, { signal: stop.signal });
    on("pointermove", (event) =>
      this.#change((state) => {
        const moving = state.shapes.find((s) => s.id === id);
        if (moving) place(moving, from.x + (event.clientX - down.clientX) * scale, from.y + (event.clientY - down.clientY) * scale);
      }),
    );
    for (const type of ["pointerup", "pointercancel", "lostpointercapture"]) {
      on(type, () => {
        stop.abort();
        delete node.dataset.dragged;
      });
    }
  }
}
