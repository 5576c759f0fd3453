// The chat: turns as the person sees them. Elements are kept and updated, so that focus and scroll position survive the stream.

import { $, el, icon } from "./dom.js";
import { callState, failureText, summary, titleOf } from "./wording.js";

const MARKS = { done: "check", failed: "cross", stopped: "stop", waiting: "clock", elsewhere: "open" };

export class Chat {
  #list = $("messages");
  #turns = new Map();
  #here;
  #onOpenCall;

  /** `here(callId)` says what this tab does for a call; `onOpenCall(callId)` is asked to show its details. */
  constructor({ here, onOpenCall }) {
    this.#here = here;
    this.#onOpenCall = onOpenCall;
    // Whoever reads the end goes on doing so when a notice or a longer input takes some of the room.
    let atEnd = true;
    this.#list.addEventListener("scroll", () => (atEnd = this.#isAtEnd()));
    new ResizeObserver(() => atEnd && this.#toEnd()).observe(this.#list);
  }

  clear() {
    this.#turns.clear();
    $("turns").replaceChildren();
    $("welcome").hidden = false;
  }

  /** Shows what the person said while it is on its way; update of the next turn replaces it. */
  sending(text) {
    this.#turns.get("sending")?.root.remove();
    this.#turns.delete("sending");
    if (text === null) {
      $("welcome").hidden = this.#turns.size > 0;
      return;
    }
    const root = el("article", { className: "turn sending" }, el("p", { className: "said" }, text));
    this.#turns.set("sending", { root });
    this.#append(root);
  }

  update(turn) {
    const stuck = this.#isAtEnd();
    const view = this.#turns.get(turn.id) ?? this.#make(turn);
    view.said.textContent = turn.input;
    for (const item of turn.items) {
      let node = view.items.get(item.key);
      if (!node) {
        node = item.kind === "call" ? this.#callNode(item.call) : el("div", { className: "reply" });
        view.items.set(item.key, node);
        view.body.append(node);
      }
      if (item.kind === "call") this.#showCall(node, item.call);
      else if (node.dataset.text !== item.text) {
        node.dataset.text = item.text;
        node.replaceChildren(...formatted(item.text));
      }
      node.classList.toggle("streaming", item.kind === "text" && !item.done);
    }
    view.thinking.hidden = !isThinking(turn);
    view.end.replaceChildren(...endOf(turn));
    if (stuck) this.#toEnd();
  }

  #make(turn) {
    this.sending(null);
    const said = el("p", { className: "said" });
    const body = el("div", { className: "turn-body" });
    const thinking = el("p", { className: "thinking" }, el("span"), el("span"), el("span"), el("span", { className: "hidden" }, "The agent is thinking"));
    const end = el("div", { className: "turn-end" });
    const root = el("article", { className: "turn", "data-turn": turn.id }, said, body, thinking, end);
    const view = { root, said, body, thinking, end, items: new Map() };
    this.#turns.set(turn.id, view);
    this.#append(root);
    return view;
  }

  #append(root) {
    $("welcome").hidden = true;
    $("turns").append(root);
    this.#toEnd();
  }

  #callNode(call) {
    const node = el("button", { type: "button", className: "call", "data-call": call.id });
    node.addEventListener("click", () => this.#onOpenCall(call.id));
    return node;
  }

  #showCall(node, call) {
    const { state, label } = callState(call, this.#here(call.id));
    const key = `${state} ${label} ${call.progress?.fraction}`;
    if (node.dataset.shown === key) return;
    node.dataset.shown = key;
    node.dataset.state = state;
    const args = summary(call.args);
    const bar = state === "running" && call.progress?.fraction !== undefined ? el("span", { className: "bar" }, el("span")) : null;
    if (bar) bar.firstChild.style.width = `${Math.round(call.progress.fraction * 100)}%`;
    node.replaceChildren(
      el("span", { className: "call-mark" }, ...(MARKS[state] ? [icon(MARKS[state])] : [el("span", { className: "spinner" })])),
      el("span", { className: "call-text" },
        el("span", { className: "call-title" }, titleOf(call.tool)),
        args ? el("span", { className: "call-args" }, args) : null,
        state === "done" ? null : el("span", { className: "call-label" }, label),
        bar),
      el("span", { className: "call-more" }, icon("open"), el("span", { className: "hidden" }, state === "done" ? "Done. Show details" : "Show details")),
    );
  }

  #isAtEnd() {
    return this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight < 80;
  }

  #toEnd() {
    this.#list.scrollTop = this.#list.scrollHeight;
  }
}

function isThinking(turn) {
  if (turn.outcome) return false;
  const last = turn.items.at(-1);
  if (last?.kind === "text") return last.done;
  return turn.items.every((item) => item.kind !== "call" || item.call.result);
}

function endOf(turn) {
  if (turn.outcome === "failed") return [el("p", { className: "failure" }, icon("cross"), el("span", {}, `The agent could not finish: ${failureText(turn.failure)}`))];
  if (turn.outcome === "canceled") return [el("p", { className: "stopped" }, "Stopped")];
  return [];
}

/** The little formatting that models use: paragraphs, lists and `code`, as nodes. */
function formatted(text) {
  const nodes = [];
  let list = null;
  for (const line of text.split("\n")) {
    const item = /^\s*[-*] (.*)/.exec(line);
    if (item) {
      if (!list) nodes.push((list = el("ul")));
      list.append(el("li", {}, ...inline(item[1])));
      continue;
    }
    list = null;
    if (line.trim()) nodes.push(el("p", {}, ...inline(line)));
  }
  return nodes;
}

/** Marks `code`, JSON and names_like_this. */
function inline(line) {
  return line.split(/(`[^`]+`|[{[].*[}\]]|\b[a-z]+(?:_[a-z]+)+\b)/).map((part, i) => (i % 2 && isCode(part) ? el("code", {}, part.replace(/^`(.*)`$/, "$1")) : part));
}

function isCode(part) {
  if (!/^[{[]/.test(part)) return true;
  try {
    return !!JSON.parse(part);
  } catch {
    return false;
  }
}
