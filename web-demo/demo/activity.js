// The activity: every event of the session by turn, and each call with all that is known of it.

import { $, clock, copy, duration, el, plural } from "./dom.js";
import { OUTCOMES, callState, failureText, summary } from "./wording.js";

const LINES = {
  turn_started: (e) => ["Request", e.input.map((part) => part.text).join(" ")],
  step_started: (e) => ["Model called", `step ${e.step}`],
  message: (e) => ["Answer", e.tool_calls.length ? `asks for ${plural(e.tool_calls.length, "call")}` : e.text],
  attempt_voided: (e) => ["Attempt voided", e.reason],
  turn_completed: (e) => ["Turn completed", plural(e.steps, "step")],
  turn_failed: (e) => ["Turn failed", failureText(e.failure)],
  turn_canceled: (e) => ["Turn stopped", e.reason === "session_ended" ? "the session was ended" : ""],
};

export class Activity {
  #list = $("activity");
  #turns = new Map();
  #calls = new Map();
  #here;

  /** `here(callId)` says what this tab does for a call. */
  constructor({ here }) {
    this.#here = here;
    $("calls-only").addEventListener("change", ({ target }) => this.#list.classList.toggle("calls-only", target.checked));
  }

  clear() {
    this.#turns.clear();
    this.#calls.clear();
    this.#list.replaceChildren($("activity-empty"));
    $("activity-empty").hidden = false;
  }

  /** Opens a call and brings it into view. */
  open(callId) {
    const view = this.#calls.get(callId);
    if (!view) return;
    view.details.open = true;
    this.#show(view.call);
    view.details.scrollIntoView({ block: "nearest" });
    view.summary.focus({ preventScroll: true });
  }

  update(turn) {
    const stuck = this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight < 80;
    const view = this.#turns.get(turn.id) ?? this.#make(turn);
    view.meta.textContent = turn.outcome ? duration(Date.parse(turn.endedAt) - Date.parse(turn.startedAt)) : "running";
    view.root.dataset.outcome = turn.outcome ?? "running";
    view.state.textContent = OUTCOMES[turn.outcome] ?? "";
    for (const entry of turn.events.slice(view.shown)) view.rows.append(this.#row(turn, entry));
    view.shown = turn.events.length;
    for (const { call } of turn.events) if (call) this.#show(call);
    if (stuck) this.#list.scrollTop = this.#list.scrollHeight;
  }

  #make(turn) {
    $("activity-empty").hidden = true;
    const meta = el("span", { className: "meta mono" });
    const state = el("span", { className: "hidden" });
    const rows = el("ol", { className: "rows" });
    const head = el("h3", {}, el("span", { className: "dot", "aria-hidden": "true" }), el("span", {}, `Turn ${turn.number}`), state,
      el("span", { className: "meta" }, clock(turn.startedAt)), meta);
    const root = el("section", { className: "activity-turn" }, head, rows);
    const view = { root, meta, state, rows, shown: 0 };
    this.#turns.set(turn.id, view);
    this.#list.append(root);
    return view;
  }

  #row(turn, { event, call }) {
    const offset = el("span", { className: "offset mono" }, `+${duration(Date.parse(event.time) - Date.parse(turn.startedAt))}`);
    if (call) return el("li", { className: "row row-call" }, this.#callNode(call, offset));
    const [what, about] = LINES[event.type]?.(event) ?? [event.type, ""];
    return el("li", { className: "row", "data-type": event.type }, el("span", { className: "row-line" },
      el("span", { className: "what" }, what), about ? el("span", { className: "about" }, about) : null, offset));
  }

  #callNode(call, offset) {
    const badge = el("span", { className: "badge" });
    const took = el("span", { className: "took mono" });
    const head = el("summary", {}, el("span", { className: "call-name mono" }, call.tool),
      el("span", { className: "about" }, summary(call.args)), took, badge, offset);
    const body = el("div", { className: "call-body" });
    const details = el("details", { "data-call": call.id }, head, body);
    details.addEventListener("toggle", () => this.#show(call));
    this.#calls.set(call.id, { call, details, summary: head, badge, took, body, shown: "" });
    return details;
  }

  #show(call) {
    const view = this.#calls.get(call.id);
    const { state, label } = callState(call, this.#here(call.id));
    view.details.dataset.state = state;
    view.badge.textContent = { done: "ok", failed: call.result?.error?.code, stopped: call.result?.error?.code, elsewhere: "other tab", waiting: "waiting" }[state] ?? "running";
    view.badge.title = label;
    view.took.textContent = call.durationMs === undefined ? "" : duration(call.durationMs);
    const key = `${call.history.length} ${state}`;
    if (!view.details.open || view.shown === key) return;
    view.shown = key;
    view.body.replaceChildren(...bodyOf(call));
  }
}

function bodyOf(call) {
  const facts = [
    ["Settled by", call.settledBy],
    ["Took", call.durationMs === undefined ? undefined : duration(call.durationMs)],
    ["Step", String(call.step)],
    ["Attempt", call.attempt ? String(call.attempt) + (call.mayHaveRun ? ", may have run before" : "") : "never offered"],
    ["Runs in", call.source === "page" ? "this page" : call.source],
    ["Deadline", call.deadline ? clock(call.deadline) : undefined],
  ];
  return [
    el("h4", {}, "Arguments"), json(call.args ?? {}),
    el("h4", {}, call.result?.ok === false ? "Error" : "Result"),
    call.result ? json(call.result.ok ? call.result.output : call.result.error) : el("p", { className: "hint" }, "No result yet"),
    el("dl", { className: "facts" }, ...facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    el("h4", {}, "Course"),
    el("ol", { className: "course" }, ...call.history.map(({ time, what }) =>
      el("li", {}, el("span", {}, what), el("span", { className: "mono" }, `+${duration(Date.parse(time) - Date.parse(call.offeredAt))}`)))),
    idButton(call.id),
  ];
}

function idButton(id) {
  const label = el("span", {}, id);
  const button = el("button", { type: "button", className: "quiet mono call-id", title: "Copy the id of this call" }, label);
  button.addEventListener("click", () => copy(id, button, label));
  return button;
}

/** JSON with its keys, strings and other values told apart. */
function json(value) {
  const text = JSON.stringify(value, null, 2);
  const code = el("code");
  let from = 0;
  for (const match of text.matchAll(/("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g)) {
    code.append(text.slice(from, match.index));
    const token = match[1] ?? match[0];
    code.append(el("span", { className: match[2] ? "json-key" : match[1] ? "json-string" : "json-value" }, token), match[2] ?? "");
    from = match.index + match[0].length;
  }
  code.append(text.slice(from));
  return el("pre", { className: "json", tabIndex: 0 }, code);
}
