// The dialog in which the agent asks the person. One question at a time; others wait for their turn.

import { $, announce, duration, el } from "./dom.js";
import { asQuestion } from "./wording.js";

const DRAFT = "treadle-demo-draft:";

export class Asker {
  #dialog = $("ask");
  #line = Promise.resolve();
  /** @type {(answer: string | null) => void} */
  #answer = () => {};
  #field;
  #onOpen;

  /** `onOpen(callId | null)` hears which call's question is open; `onStop` is asked to cancel the turn. */
  constructor({ onOpen, onStop }) {
    this.#onOpen = onOpen;
    this.#dialog.addEventListener("cancel", (event) => {
      event.preventDefault(); // Escape declines, but only once
      this.#answer(null);
    });
    $("ask-decline").addEventListener("click", () => this.#answer(null));
    $("ask-stop").addEventListener("click", onStop);
    $("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const answer = this.#field.value();
      if (answer) this.#answer(answer);
      else this.#field.focus();
    });
  }

  /** Asks, and resolves to the answer, or to null if the person declines; rejects when the call is over. */
  ask = (question, ctx) => {
    const mine = this.#line.then(() => this.#show(question, ctx));
    this.#line = mine.catch(() => {});
    return mine;
  };

  async #show({ question, options, swatches }, { toolCallId, signal, deadline }) {
    if (signal.aborted) throw signal.reason;
    const key = DRAFT + toolCallId;
    $("ask-question").textContent = asQuestion(question);
    this.#field = options?.length ? choices(options, swatches) : freeText(key);
    $("ask-field").replaceChildren(this.#field.node);
    const tick = () => ($("ask-time").textContent = timeLeft(deadline));
    tick();
    const timer = setInterval(tick, 1000);
    let over;
    try {
      this.#dialog.showModal();
      this.#field.focus();
      this.#onOpen(toolCallId);
      return await new Promise((resolve, reject) => {
        over = () => reject(signal.reason);
        this.#answer = resolve;
        signal.addEventListener("abort", over);
      });
    } finally {
      signal.removeEventListener("abort", over);
      clearInterval(timer);
      this.#dialog.close();
      this.#onOpen(null);
      sessionStorage.removeItem(key);
      if (signal.aborted) announce("The question was withdrawn.");
    }
  }
}

function timeLeft(deadline) {
  const ms = deadline - Date.now();
  if (ms <= 0) return "Time is up";
  return ms > 90_000 ? `The agent waits up to ${Math.ceil(ms / 60_000)} more minutes` : `The agent waits ${duration(Math.ceil(ms / 1000) * 1000)} more`;
}

/** A line of text; what was typed survives a reload. */
function freeText(key) {
  const input = el("input", { id: "ask-input", type: "text", autocomplete: "off", maxLength: 500, "aria-labelledby": "ask-question", value: sessionStorage.getItem(key) ?? "" });
  input.addEventListener("input", () => sessionStorage.setItem(key, input.value));
  return { node: input, value: () => input.value.trim(), focus: () => input.focus() };
}

function choices(options, swatches) {
  const radios = options.map((value, i) => el("input", { type: "radio", name: "ask-choice", value, checked: i === 0 }));
  const labels = options.map((value, i) =>
    el("label", { className: "choice" }, radios[i], swatches ? el("span", { className: `swatch ${value}`, "aria-hidden": "true" }) : null, el("span", {}, value)),
  );
  const node = el("div", { className: "choices", role: "radiogroup", "aria-labelledby": "ask-question" }, ...labels);
  const chosen = () => radios.find((radio) => radio.checked);
  return { node, value: () => chosen()?.value, focus: () => (chosen() ?? radios[0]).focus() };
}
