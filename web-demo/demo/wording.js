// The words for what the protocol says in codes.

/** add_shape becomes "Add shape". */
export function titleOf(tool) {
  const words = tool.replaceAll(/[_.-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The arguments of a call in a few words. */
export function summary(args) {
  if (typeof args !== "object") return JSON.stringify(args) ?? "";
  const words = Object.entries(args ?? {}).map(([name, value]) => {
    if (typeof value === "number" || typeof value === "boolean") return `${name} ${value}`;
    return typeof value === "string" ? value : JSON.stringify(value);
  });
  return words.join(", ");
}

/** A question as a sentence. */
export function asQuestion(text) {
  const sentence = text.trim();
  return sentence.charAt(0).toUpperCase() + sentence.slice(1) + (/[.!?:…]$/.test(sentence) ? "" : "?");
}

const CALL_ERRORS = {
  DECLINED: "You declined",
  TOOL_CANCELED: "Stopped",
  TOOL_TIMEOUT: "Nobody answered in time",
  TOOL_INTERRUPTED: "Interrupted",
  TOOL_NOT_FOUND: "This page has no such tool",
  TOOL_ARGS_INVALID: "The arguments do not fit the tool",
  TOOL_HANDLER_NOT_FOUND: "No open page runs this tool",
};

/** Why a call has no output, for people. */
export const callError = (error) => CALL_ERRORS[error.code] ?? error.message;

/** How long after a claim it is clear whether this tab made it, in milliseconds. */
export const SETTLING = 700;

/** How a call stands: {state, label}. `here` is "running", "asking" or undefined: what this tab does for it. */
export function callState(call, here) {
  if (call.result?.ok) return { state: "done", label: "Done" };
  if (call.result) {
    const quiet = ["DECLINED", "TOOL_CANCELED"].includes(call.result.error.code);
    return { state: quiet ? "stopped" : "failed", label: callError(call.result.error) };
  }
  if (here === "asking") return { state: "waiting", label: "Waiting for you" };
  if (!here && call.claim && Date.now() - call.claim.seenAt >= SETTLING) return { state: "elsewhere", label: "Running in another tab" };
  return { state: "running", label: call.progress?.message ?? "Running" };
}

export const OUTCOMES = { completed: "Completed", failed: "Failed", canceled: "Stopped" };

/** What happened to a turn that failed. */
const FAILURES = {
  crash_loop: "The server restarted too often during this request.",
  max_steps: "The agent took too many steps and was ended.",
};

export const failureText = (failure) => FAILURES[failure.class] ?? failure.message;

const FAULTS = {
  CONNECTION_FAILED: "The server does not answer. Your message was not sent.",
  SESSION_BUSY: "The agent is still busy with another request, perhaps from another tab.",
  SESSION_ENDED: "This session has ended. Start a new one to go on.",
  SESSION_NOT_FOUND: "This session no longer exists. Start a new one to go on.",
  UNAUTHENTICATED: "The server wants a key that this page does not have.",
  ORIGIN_NOT_ALLOWED: "The server does not allow this page's address. Start it with --allow-origin.",
  TOO_MANY_STREAMS: "Too many pages follow this session. Close some tabs.",
  MODEL_UNAVAILABLE: "The model is not available at the moment.",
};

/** What went wrong, for people. */
export const faultText = (fault) => FAULTS[fault?.code] ?? fault?.message ?? "Something went wrong.";
