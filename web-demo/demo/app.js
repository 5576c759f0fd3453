// The demo: one session, its tools in this page, and the views of what happens.

import { Treadle } from "../sdk/v1/client.js";
import { Activity } from "./activity.js";
import { Asker } from "./ask.js";
import { Board } from "./board.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { $, announce } from "./dom.js";
import { showCounter, showNote } from "./note.js";
import { StatusBar } from "./status.js";
import { GUIDANCE, makeTools } from "./tools.js";
import { SETTLING, faultText } from "./wording.js";
import { Workspace } from "./workspace.js";

const treadle = new Treadle({ baseUrl: new URL("../", import.meta.url).href });
const workspace = new Workspace();
const conversation = new Conversation();

/** What this tab does for a call: "running" or "asking". */
const here = new Map();
let session = null;
let offs = [];
let latest = null; // only the last of several starts counts

const show = (view) => {
  document.body.dataset.view = view;
  for (const tab of document.querySelectorAll("[data-show]")) tab.setAttribute("aria-pressed", String(tab.dataset.show === view));
};
const activity = new Activity({ here: (id) => here.get(id) });
const chat = new Chat({
  here: (id) => here.get(id),
  onOpenCall(id) {
    show("activity");
    activity.open(id);
  },
});
const status = new StatusBar({ isAsking: () => [...here.values()].includes("asking"), isHere: () => here.size > 0 });
const composer = new Composer({ onSend: send, onStop: stop });
const asker = new Asker({
  onStop: stop,
  onOpen(id) {
    for (const [call, doing] of here) if (doing === "asking") mark(call, "running");
    if (id) mark(id, "asking");
  },
});
new Board(workspace);
showCounter(workspace);
showNote(workspace);

function mark(callId, doing) {
  if (doing) here.set(callId, doing);
  else here.delete(callId);
  refresh(conversation.calls.get(callId)?.turn);
}

function refresh(turn) {
  if (turn) {
    chat.update(turn);
    activity.update(turn);
  }
  status.show(session);
  composer.show(session);
}

/** The tools, noting which calls this tab runs. */
const tools = makeTools(workspace, asker.ask).map((tool) => ({
  ...tool,
  async handler(args, ctx) {
    mark(ctx.toolCallId, "running");
    try {
      return await tool.handler(args, ctx);
    } finally {
      mark(ctx.toolCallId, null);
    }
  },
}));

const sessionInAddress = () => new URLSearchParams(location.hash.slice(1)).get("session");

/** Resumes a session, or creates one if there is no id. */
async function start(id) {
  leave();
  const mine = (latest = {});
  try {
    const opened = id ? await treadle.resumeSession(id, { tools }) : await treadle.createSession({ skills: { guidance: GUIDANCE, tools }, metadata: { app: "demo" } });
    if (mine !== latest) return opened.close();
    attach(opened);
  } catch (fault) {
    if (mine !== latest) return;
    status.failed();
    const gone = ["SESSION_NOT_FOUND", "INVALID_INPUT"].includes(fault.code) && id;
    composer.notice(fault.code === "CONNECTION_FAILED" ? "The server does not answer." : gone ? faultText({ code: "SESSION_NOT_FOUND" }) : faultText(fault),
      gone ? ["New session", () => start(null)] : ["Try again", () => start(id)]);
  }
}

/** Lets go of the session that is shown; it lives on. What it waits for from this page is canceled. */
function leave() {
  for (const off of offs) off();
  offs = [];
  if (session && session.getStatus() !== "ended") {
    const old = session;
    if (here.size > 0) old.cancel().catch(() => {}).then(() => old.close());
    else old.close();
  }
  session = null;
  workspace.open(null);
  conversation.clear();
  chat.clear();
  activity.clear();
  composer.notice(null);
  refresh();
}

function attach(opened) {
  session = opened;
  history.replaceState(null, "", `#session=${session.id}`);
  workspace.open(session.id);
  offs = [
    session.onEvent(take),
    session.onStatus(() => refresh()),
    session.onConnection((state) => {
      composer.connection(state);
      refresh();
    }),
    session.onError((fault) => composer.notice(faultText(fault))),
    session.onEnded(() => {
      composer.notice(faultText({ code: "SESSION_ENDED" }), ["New session", () => start(null)]);
      refresh();
    }),
  ];
  refresh();
  if (matchMedia("(pointer: fine)").matches && !$("ask").open) $("composer-input").focus();
}

function take(event, { replay }) {
  if (event.type === "reset") {
    conversation.clear();
    chat.clear();
    activity.clear();
    return;
  }
  const { turn } = conversation.apply(event);
  $("model").textContent = conversation.session.model && `Model: ${conversation.session.model}`;
  refresh(turn);
  if (event.type === "tool_claimed") setTimeout(() => refresh(conversation.turns.get(turn.id)), SETTLING + 50);
  if (!replay && event.type === "message" && event.text) announce(`Agent: ${event.text}`);
  if (event.type === "turn_started" && !replay) composer.accepted();
}

async function send(text) {
  chat.sending(text);
  try {
    await session.sendText(text);
  } catch (fault) {
    if (fault.details?.outcome || fault.code === "SESSION_CLOSED") return; // the conversation shows it
    chat.sending(null);
    composer.refused(text);
    composer.notice(faultText(fault), ["Send again", () => composer.submit()]);
  }
}

function stop() {
  session?.cancel().catch((fault) => composer.notice(faultText(fault)));
}

for (const tab of document.querySelectorAll("[data-show]")) tab.addEventListener("click", () => show(tab.dataset.show));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address keeps the session
  show("chat");
  $("composer-input").focus();
});
$("new-session").addEventListener("click", () => start(null));
addEventListener("hashchange", () => sessionInAddress() !== session?.id && start(sessionInAddress()));
start(sessionInAddress());
