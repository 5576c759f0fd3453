// The session's events, folded into what the views show: turns with texts and calls, in order. The events are the only source, so
// a reload, a second tab and a reconnect all show the same.

export class Conversation {
  /** Turns in order, by id. */
  turns = new Map();
  /** Calls by id. */
  calls = new Map();
  session = { model: "", tools: [], createdAt: undefined };

  clear() {
    this.turns.clear();
    this.calls.clear();
  }

  /** Takes one event; returns {turn?, call?}, what it changed. */
  apply(event) {
    const { type, turn_id: turnId } = event;
    if (type === "session_created") Object.assign(this.session, { model: event.model, tools: event.tools, createdAt: event.time });
    if (type === "session_updated") this.session.model = event.model;
    if (!turnId) return {};
    const turn = this.#turn(event);
    const call = event.tool_call_id ? this.#call(turn, event) : undefined;
    const react = REACTIONS[type];
    if (react) react(turn, event, call);
    if (call && !call.listed) {
      call.listed = true;
      turn.events.push({ event, call });
    } else if (!call && !QUIET.has(type)) {
      turn.events.push({ event });
    }
    return { turn, call };
  }

  #turn(event) {
    let turn = this.turns.get(event.turn_id);
    if (!turn) {
      turn = {
        id: event.turn_id, number: this.turns.size + 1, input: "", items: [], events: [], asked: new Map(),
        startedAt: event.time, endedAt: undefined, outcome: undefined, failure: undefined,
      };
      this.turns.set(turn.id, turn);
    }
    return turn;
  }

  #call(turn, event) {
    let call = this.calls.get(event.tool_call_id);
    if (!call) {
      call = {
        id: event.tool_call_id, turn, tool: event.tool, source: event.source,
        args: event.args ?? turn.asked.get(event.tool_call_id), step: event.step,
        attempt: 0, mayHaveRun: false, deadline: undefined, offeredAt: event.time, settledAt: undefined,
        claim: undefined, progress: undefined, result: undefined, settledBy: undefined, durationMs: undefined, history: [], listed: false,
      };
      this.calls.set(call.id, call);
      turn.items.push({ kind: "call", key: call.id, call });
    }
    return call;
  }
}

/** Events that have no line of their own in a list: their effect shows elsewhere. */
const QUIET = new Set(["text_delta", "reasoning_delta", "status_changed"]);

const end = (outcome) => (turn, event) => {
  Object.assign(turn, { outcome, endedAt: event.time, failure: event.failure });
  for (const item of turn.items) if (item.kind === "text") item.done = true;
};

const REACTIONS = {
  turn_started(turn, event) {
    turn.input = event.input.map((part) => part.text).join("\n");
  },
  text_delta(turn, event) {
    const text = textOf(turn, event.step);
    if (text.done) return;
    if (text.attempt !== event.attempt) Object.assign(text, { attempt: event.attempt, text: "" });
    text.text += event.text;
  },
  attempt_voided(turn, event) {
    textOf(turn, event.step).text = "";
  },
  message(turn, event) {
    for (const { tool_call_id: id, args } of event.tool_calls) turn.asked.set(id, args);
    if (event.text) Object.assign(textOf(turn, event.step), { text: event.text, done: true });
  },
  tool_call(_turn, event, call) {
    const { attempt, may_have_run: mayHaveRun, deadline, args } = event;
    Object.assign(call, { attempt, mayHaveRun, deadline, args, claim: undefined });
    call.history.push({ time: event.time, what: attempt > 1 ? `Offered again, attempt ${attempt}` : "Offered to the page" });
  },
  tool_claimed(_turn, event, call) {
    if (call.claim?.clientId !== event.client_id) call.history.push({ time: event.time, what: `Claimed by client ${event.client_id.slice(0, 8)}` });
    call.claim = { clientId: event.client_id, expires: event.expires, seenAt: Date.now() };
  },
  tool_progress(_turn, event, call) {
    call.progress = { message: event.message, fraction: event.fraction };
    call.deadline = event.deadline;
    call.history.push({ time: event.time, what: `Progress: ${event.message ?? `${Math.round(event.fraction * 100)} %`}` });
  },
  tool_result(_turn, event, call) {
    Object.assign(call, { tool: event.tool, source: event.source, result: event.result, settledBy: event.settled_by, durationMs: event.duration_ms, settledAt: event.time });
    call.history.push({ time: event.time, what: `Settled by ${event.settled_by}` });
  },
  turn_completed: end("completed"),
  turn_failed: end("failed"),
  turn_canceled: end("canceled"),
};

function textOf(turn, step) {
  const key = `text-${step}`;
  let item = turn.items.find((known) => known.key === key);
  if (!item) {
    item = { kind: "text", key, step, attempt: 0, text: "", done: false };
    turn.items.push(item);
  }
  return item;
}
