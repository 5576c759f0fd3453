// The head of the page: what the session does, whether the page hears of it, and which session it is.

import { $, copy } from "./dom.js";

const STATUS = { idle: "Ready", running: "Working", ended: "Ended", starting: "Starting", failed: "Not started" };
const CONNECTION = { connecting: "Connecting", open: "Live", reconnecting: "Reconnecting", closed: "Not connected" };

export class StatusBar {
  #questions;
  #shown;

  /** `isAsking()`: a question is open here; `isHere()`: a call runs here. */
  constructor(questions) {
    this.#questions = questions;
    const button = $("copy-session");
    button.addEventListener("click", () => copy(this.#shown.id, button, $("session-id")));
  }

  show(session) {
    this.#shown = session;
    const state = session?.getStatus() ?? "starting";
    this.#state(state, state === "waiting_tool_result" ? this.#waiting() : STATUS[state]);
    const connection = session?.getConnection() ?? "connecting";
    $("connection").hidden = state === "ended";
    $("connection").dataset.state = connection;
    $("connection-text").textContent = CONNECTION[connection];
    $("copy-session").hidden = !session;
    if (!session || $("copy-session").dataset.copied) return;
    const short = session.id.slice(-8);
    $("session-id").textContent = short;
    $("copy-session").title = `Copy the session's id: ${session.id}`;
    $("copy-session").setAttribute("aria-label", `Session ${short}, copy its id`);
  }

  failed() {
    this.#state("failed", STATUS.failed);
    $("connection").dataset.state = "closed";
    $("connection-text").textContent = CONNECTION.closed;
  }

  #waiting() {
    if (this.#questions.isAsking()) return "Waiting for you";
    return this.#questions.isHere() ? "Using a tool" : "Waiting for a tab";
  }

  #state(status, text) {
    const node = $("status");
    node.dataset.status = text === "Waiting for you" ? "waiting_user" : status;
    if ($("status-text").textContent !== text) $("status-text").textContent = text;
  }
}
