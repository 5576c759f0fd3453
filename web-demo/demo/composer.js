// Where the person writes: the input, the suggestions, and what has to be said about both.

import { $, el } from "./dom.js";

const SUGGESTIONS = [
  "Add a red circle",
  "Set the counter to 7",
  "Make the selected text upper case",
  "Ask me for my favourite colour and add a square in it",
  "Add two blue triangles; then tidy up the board",
  "Do the thing that fails",
];
const LOST_AFTER = 1500;

export class Composer {
  #input = $("composer-input");
  #onSend;
  #ready = false;
  #lost;

  constructor({ onSend, onStop }) {
    this.#onSend = onSend;
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.#input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    this.#input.addEventListener("input", () => this.#fit());
    $("stop").addEventListener("click", () => {
      this.#input.focus(); // the button is about to go
      onStop();
    });
    for (const text of SUGGESTIONS) {
      const chip = el("button", { type: "button", className: "chip" }, text);
      chip.addEventListener("click", () => {
        this.#input.value = text;
        this.submit();
      });
      $("chips").append(chip);
    }
  }

  show(session) {
    const status = session?.getStatus();
    const busy = status === "running" || status === "waiting_tool_result";
    this.#ready = status === "idle";
    $("stop").hidden = !busy;
    $("send").hidden = busy;
    $("send").disabled = !this.#ready;
    this.#input.disabled = status === "ended";
    for (const chip of $("chips").children) chip.disabled = !this.#ready;
  }

  submit() {
    const text = this.#input.value.trim();
    if (!text || !this.#ready) return;
    this.notice(null);
    this.#set("");
    this.#input.focus();
    this.#onSend(text);
  }

  accepted() {
    this.notice(null);
  }

  /** The text did not get through: it goes back where it can be sent again. */
  refused(text) {
    if (!this.#input.value) this.#set(text);
  }

  /** Says that the connection is lost once that has lasted. */
  connection(state) {
    clearTimeout(this.#lost);
    if (state === "reconnecting") this.#lost = setTimeout(() => this.notice("Connection lost. Trying again; the session goes on where it was.", null, "lost"), LOST_AFTER);
    else if ($("notice").dataset.kind === "lost") this.notice(null);
  }

  /** Shows a message above the input, with an action [label, fn]; null takes it away. */
  notice(text, action = null, kind = "fault") {
    const node = $("notice");
    node.hidden = text === null;
    node.dataset.kind = kind;
    if (text === null) return node.replaceChildren();
    const close = el("button", { type: "button", className: "quiet", "aria-label": "Dismiss" }, "Dismiss");
    close.addEventListener("click", () => this.notice(null));
    let button = close;
    if (action) {
      button = el("button", { type: "button", className: "plain" }, action[0]);
      button.addEventListener("click", () => {
        this.notice(null);
        action[1]();
      });
    }
    node.replaceChildren(el("p", { role: "alert" }, text), kind === "lost" ? "" : button);
  }

  #set(text) {
    this.#input.value = text;
    this.#fit();
  }

  /** As high as its text, up to the limit of the style sheet. */
  #fit() {
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }
}
