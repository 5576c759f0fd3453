// client.js against a scripted server and a clock that stands still: what happens when, and what is never repeated.
import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, it, mock } from "node:test";
import { defineTool, Treadle } from "../client.js";

const ID = "0198c6a0-1f2e-7c3d-8a4b-5c6d7e8f9a0b";
const json = (body, status = 200, headers) => new Response(JSON.stringify(body), { status, headers });
const problem = (code, status, headers) => json({ code, status, title: code, detail: `it is ${code}`, instance: "1" }, status, headers);
const settle = async () => {
  for (let i = 0; i < 20; i++) await new Promise(setImmediate);
};
/** Lets time pass in small steps, so that what follows from one timer sees the right time. */
async function pass(ms) {
  await settle();
  for (let left = ms; left > 0; left -= 50) {
    mock.timers.tick(Math.min(50, left));
    await settle();
  }
}

/** A server of which a test writes the stream and may answer any request. */
class Script {
  requests = [];
  answers = {};
  history = [];
  pending = [];
  #streams = [];
  #position = 0;
  state = () => ({ id: ID, status: "idle", model: "demo", turns: 0, skills: { tools: this.tools ?? [] }, pending_tool_calls: this.pending, cursor: `t-${this.#position}` });

  fetch = async (url, { method, headers, body, signal }) => {
    const path = url.replace(/^http:\/\/fake\/v1\/sessions(\/0198[^/]*)?\/?/, "").replace(/\?.*/, "");
    const request = { at: Date.now(), key: `${method} ${path}`, url, headers, body: body && JSON.parse(body), signal };
    this.requests.push(request);
    const answer = Object.entries(this.answers).find(([key]) => request.key.startsWith(key))?.[1];
    const response = ((await answer?.(request)) || this.#answer(request));
    signal.throwIfAborted();
    return response;
  };
  #answer({ key, headers, body, signal }) {
    if (key === "POST ") return json(((this.tools = body.skills.tools), this.state()), 201);
    if (key === "GET ") return json(this.state());
    if (key === "GET events" && headers.Accept === "application/json") return json({ events: this.history, cursor: `t-${this.#position}`, more: false });
    if (key === "GET events") return this.#stream(signal);
    if (key.endsWith("/claim")) return json({ claim_id: "c1", ...body });
    return json({});
  }
  #stream(signal) {
    const stream = new ReadableStream({
      start: (controller) => {
        this.#streams.push(controller);
        signal.addEventListener("abort", () => controller.error(signal.reason));
      },
    });
    this.write(`event: ready\nid: t-${this.#position}\ndata: {"type":"ready"}\n\n`);
    return new Response(stream, { headers: { "Content-Type": "text/event-stream" } });
  }
  write(text) {
    this.#streams.at(-1).enqueue(new TextEncoder().encode(text));
  }
  close() {
    this.#streams.at(-1).close();
  }
  event(type, members = {}) {
    this.#position++;
    return { id: `t-${this.#position}`, event: { type, session_id: ID, time: new Date().toISOString(), ...members } };
  }
  async send(...events) {
    this.write(events.map(({ id, event }) => `id: ${id}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
    await settle();
  }
  call(id, members) {
    return this.event("tool_call", { tool_call_id: id, turn_id: "turn", tool: "ask", source: "page", args: {}, step: 1, attempt: 1, may_have_run: false, deadline: new Date(Date.now() + 60_000).toISOString(), ...members });
  }
  result(id, settledBy = "page") {
    return this.event("tool_result", { tool_call_id: id, turn_id: "turn", tool: "ask", source: "page", result: { ok: true, output: 1 }, settled_by: settledBy, step: 1, duration_ms: 1 });
  }
  of(key) {
    return this.requests.filter((r) => r.key.startsWith(key));
  }
  streams() {
    return this.requests.filter((r) => r.key === "GET events" && r.headers.Accept === "text/event-stream");
  }
}

let script, session;
beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
  mock.method(Math, "random", () => 1); // the longest wait
  script = new Script();
});
afterEach(async () => {
  session?.close();
  await settle();
  mock.timers.reset();
  mock.restoreAll();
});
const ask = (handler) => [defineTool({ name: "ask", description: "Asks.", handler })];
async function open(handler, options, treadle) {
  const client = new Treadle({ baseUrl: "http://fake/", fetch: script.fetch, clientId: "me", ...treadle });
  script.tools = [{ name: "ask" }];
  session = await client.resumeSession(ID, { tools: ask(handler), ...options });
  await pass(1);
  return session;
}

describe("requests", () => {
  it("are repeated with growing pauses, under the same key", async () => {
    const answers = [() => Promise.reject(new TypeError("refused")), () => problem("INTERNAL", 500), () => new Response("<html>", { status: 502 }), () => problem("SHUTTING_DOWN", 503, { "Retry-After": "7" })];
    script.answers["POST "] = () => answers.shift()?.();
    const created = new Treadle({ baseUrl: "http://fake", fetch: script.fetch, token: async () => "secret" }).createSession();
    await pass(20_000);
    session = await created;
    assert.deepEqual(script.of("POST ").map((r) => r.at), [0, 500, 1500, 3500, 10_500]);
    assert.equal(new Set(script.of("POST ").map((r) => r.headers["Idempotency-Key"])).size, 1);
    assert.equal(script.requests[0].headers.Authorization, "Bearer secret");
  });
  it("are given up after half a minute", async () => {
    script.answers["POST "] = () => Promise.reject(new TypeError("refused"));
    const created = assert.rejects(new Treadle({ baseUrl: "http://fake", fetch: script.fetch }).createSession(), { code: "CONNECTION_FAILED" });
    await pass(70_000);
    await created;
  });
  it("that hang are dropped and repeated", async () => {
    script.answers["POST "] = ({ signal }) => {
      if (script.requests.length === 1) return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    };
    const created = new Treadle({ baseUrl: "http://fake", fetch: script.fetch }).createSession();
    await pass(31_000);
    session = await created;
    assert.equal(script.of("POST ").length, 2);
    assert.ok(script.requests[1].at > 20_000);
  });
  it("of sendText stop when its signal says so", async () => {
    await open();
    script.answers["POST turns"] = () => Promise.reject(new TypeError("refused"));
    const abort = new AbortController();
    const turn = assert.rejects(session.sendText("hello", { signal: abort.signal }), { code: "TURN_CANCELED" });
    await pass(600);
    abort.abort();
    await turn;
    assert.equal(script.of("POST turns").length, 2);
  });
});

describe("the stream", () => {
  it("goes on after the last event, with growing pauses", async () => {
    await open();
    const connections = [];
    session.onConnection((c) => connections.push(c));
    await script.send(script.event("status_changed", { status: "running" }));
    assert.equal(session.getStatus(), "running");
    const opened = Date.now();
    script.answers["GET events"] = () => Promise.reject(new TypeError("refused"));
    script.close();
    await pass(100_000);
    const tries = script.streams().slice(1).map((r) => r.at - opened);
    assert.deepEqual(tries.slice(0, 8), [500, 1500, 3500, 7500, 15_500, 31_500, 61_500, 91_500].slice(0, tries.length));
    assert.ok(tries.length >= 7);
    assert.equal(script.streams().at(-1).headers["Last-Event-ID"], "t-1");
    delete script.answers["GET events"];
    await pass(30_000);
    assert.deepEqual(connections, ["reconnecting", "open"]);
  });
  it("waits as long as the server asks", async () => {
    await open();
    script.write("retry: 4000\n\n");
    await settle();
    let at = Date.now();
    script.close();
    await pass(5000);
    assert.equal(script.streams()[1].at - at, 4000);
    at = Date.now();
    script.answers["GET events"] = () => problem("TOO_MANY_STREAMS", 429, { "Retry-After": "9" });
    script.close();
    await pass(14_000);
    assert.deepEqual(script.streams().slice(2).map((r) => r.at - at), [4000, 13_000]);
  });
  it("counts as dead after 45 s without a byte", async () => {
    await open();
    const start = Date.now();
    await pass(40_000);
    script.write(":\n\n");
    await pass(44_000);
    assert.equal(script.streams().length, 1);
    await pass(8000);
    assert.equal(script.streams().length, 2);
    assert.ok(script.streams()[0].signal.aborted);
    assert.ok(script.streams()[1].at - start >= 85_000);
  });
  for (const [status, code] of [[401, "UNAUTHENTICATED"], [403, "ORIGIN_NOT_ALLOWED"], [404, "SESSION_NOT_FOUND"]]) {
    it(`ends with ${status}`, async () => {
      await open();
      const errors = [];
      session.onError((e) => errors.push(e.code));
      script.answers["GET events"] = () => problem(code, status);
      script.close();
      await pass(60_000);
      assert.deepEqual([errors, session.getConnection(), script.streams().length], [[code], "closed", 2]);
      await assert.rejects(session.sendText("hello"), { code });
    });
  }
  it("ends with 204, and with the session", async () => {
    await open();
    const ended = [];
    session.onEnded((e) => ended.push(e.deleted));
    script.answers["GET events"] = () => new Response(null, { status: 204 });
    script.close();
    await pass(1000);
    assert.deepEqual([session.getStatus(), session.getConnection(), ended], ["ended", "closed", [false]]);
  });
  it("tells of a deletion", async () => {
    await open();
    const ended = [];
    session.onEnded((e) => ended.push(e.deleted));
    script.write('event: stream_end\ndata: {"type":"stream_end","reason":"deleted"}\n\n');
    await pass(60_000);
    assert.deepEqual([ended, script.streams().length], [[true], 1]);
  });
  it("starts anew after garbage", async () => {
    await open();
    const errors = [];
    session.onError((e) => errors.push(e.code));
    script.write("data: {\n\n");
    await pass(1000);
    assert.deepEqual([errors, script.streams().length, session.getConnection()], [["PROTOCOL_ERROR"], 2, "open"]);
  });
  it("reads everything again after a reset", async () => {
    const signals = [];
    await open((args, ctx) => new Promise(() => signals.push([ctx.toolCallId, ctx.signal])));
    const chat = [];
    session.onChat((m) => chat.push([m.text, m.delta]));
    const said = script.event("turn_started", { turn_id: "turn", input: [{ type: "text", text: "hi" }] });
    const [a, b] = [script.call("a"), script.call("b")];
    const piece = script.event("text_delta", { turn_id: "turn", step: 1, attempt: 1, text: "ne" });
    await script.send(said, piece, a, b);
    await pass(200);
    assert.equal(signals.length, 2);
    script.history = [said, piece, a, script.event("message", { turn_id: "turn", step: 1, text: "new", tool_calls: [] }), script.event("status_changed", { status: "waiting_tool_result" })];
    script.write('id: u-0\nevent: reset\ndata: {"type":"reset","reason":"unknown_cursor","cursor":"u-0"}\n\n');
    await pass(2000);
    assert.deepEqual(signals.map(([id, signal]) => [id, signal.reason?.code]), [["a", undefined], ["b", "TOOL_CALL_NOT_FOUND"]]);
    assert.deepEqual(chat, [["hi", "hi"], ["ne", "ne"], ["new", "new"]]);
    assert.deepEqual([session.getStatus(), session.getConnection(), signals.length], ["waiting_tool_result", "open", 2]);
  });
  it("tells what was voided", async () => {
    await open();
    const chat = [];
    session.onChat((m) => chat.push([m.text, m.delta, m.done, m.voided]));
    const at = { turn_id: "turn", step: 1 };
    await script.send(
      script.event("text_delta", { ...at, attempt: 1, text: "He" }), script.event("text_delta", { ...at, attempt: 1, text: "llo" }),
      script.event("attempt_voided", { ...at, attempt: 1, reason: "transport" }), script.event("text_delta", { ...at, attempt: 2, text: "Hi" }),
      script.event("message", { ...at, text: "Hi!", tool_calls: [] }), script.event("message", { ...at, step: 2, text: "", tool_calls: [] }), script.event("news_of_tomorrow"),
    );
    assert.deepEqual(chat, [["He", "He", false, false], ["Hello", "llo", false, false], ["", "", false, true], ["Hi", "Hi", false, false], ["Hi!", "!", true, false]]);
  });
});

describe("a call", () => {
  const results = () => script.of("POST tool_calls").filter((r) => r.key.endsWith("/result")).map((r) => r.body);
  const claims = () => script.of("POST tool_calls").filter((r) => r.key.endsWith("/claim"));

  it("that is settled already never runs", async () => {
    let ran = 0;
    script.history = [script.call("old"), script.result("old"), script.call("open"), script.event("tool_claimed", { tool_call_id: "open", client_id: "me" })];
    await open((args, ctx) => [++ran, ctx.mayHaveRun]);
    await settle();
    assert.deepEqual(results(), [{ output: [1, true], claim_id: "c1" }], "only what is open, at once, since this client held it");
    await script.send(script.call("quick"), script.result("quick"));
    await script.send(script.result("open"));
    await script.send(script.call("open", { attempt: 2 }), script.call("old", { attempt: 2 }));
    await pass(5000);
    assert.deepEqual([ran, claims().length], [1, 1]);
  });
  it("runs once, however often it is offered", async () => {
    let ran = 0;
    await open(() => (ran++, new Promise(() => {})));
    await script.send(script.call("a"));
    await pass(150);
    assert.deepEqual([ran, claims().length], [1, 1]);
    await script.send(script.call("a", { attempt: 2, may_have_run: true }));
    assert.deepEqual([ran, claims().length], [1, 2], "the lease had run out: it is claimed again");
    await pass(15_000);
    assert.equal(ran, 1);
    assert.ok(claims().length >= 4, "and renewed");
    await script.send(script.result("a", "page"));
    const before = claims().length;
    await pass(30_000);
    assert.equal(claims().length, before, "until it is settled");
  });
  it("waits for the next offer while another client holds it", async () => {
    const seen = [];
    await open((args, ctx) => seen.push([ctx.attempt, ctx.mayHaveRun]));
    script.answers["POST tool_calls/a/claim"] = () => problem("TOOL_CALL_CLAIMED", 409);
    await script.send(script.call("a"), script.call("b"), script.event("tool_claimed", { tool_call_id: "b", client_id: "other" }));
    await pass(30_000);
    assert.deepEqual([seen, claims().length], [[], 1]);
    delete script.answers["POST tool_calls/a/claim"];
    await script.send(script.call("a", { attempt: 2, may_have_run: true }), script.call("b", { attempt: 2 }));
    await pass(200);
    assert.deepEqual(seen, [[2, true], [2, true]]);
  });
  it("keeps its result for the next offer when it lost the claim", async () => {
    let ran = 0;
    await open(() => ++ran);
    script.answers["POST tool_calls/a/result"] = () => problem("TOOL_CALL_CLAIMED", 409);
    await script.send(script.call("a"));
    await pass(10_000);
    assert.equal(results().length, 1);
    delete script.answers["POST tool_calls/a/result"];
    await script.send(script.call("a", { attempt: 2, may_have_run: true }));
    await pass(200);
    assert.deepEqual([ran, results()], [1, [{ output: 1, claim_id: "c1" }, { output: 1, claim_id: "c1" }]]);
  });
  it("gives its result until that arrives, or is not wanted any more", async () => {
    await open(() => "x");
    let down = true;
    script.answers["POST tool_calls"] = ({ key }) => down && key.endsWith("result") && (script.requests.length % 2 ? problem("INTERNAL", 500) : Promise.reject(new TypeError("refused")));
    await script.send(script.call("a"), script.call("b"));
    await pass(200_000);
    assert.ok(results().length > 15);
    await script.send(script.result("b", "timeout"));
    down = false;
    script.requests.length = 0;
    script.close();
    await pass(600);
    assert.deepEqual(script.of("POST tool_calls").filter((r) => r.key.endsWith("result")).map((r) => r.key), ["POST tool_calls/a/result"], "as soon as the stream is open again");
  });
  it("that somebody else settled is no error", async () => {
    const errors = [];
    await open(() => "x");
    session.onError((e) => errors.push(e));
    script.answers["POST tool_calls/a/result"] = () => problem("TOOL_CALL_SETTLED", 409);
    script.answers["POST tool_calls/b/claim"] = () => problem("TOOL_CALL_SETTLED", 409);
    script.answers["POST tool_calls/c/result"] = () => problem("UNAUTHENTICATED", 401);
    script.answers["POST tool_calls/d/result"] = ({ body }) => body.output && problem("TOOL_RESULT_INVALID", 422);
    await script.send(script.call("a"), script.call("b"), script.call("c"), script.call("d"));
    await pass(5000);
    assert.deepEqual(errors.map((e) => e.code), ["UNAUTHENTICATED", "TOOL_RESULT_INVALID"]);
    assert.equal(results().at(-1).error.code, "TOOL_RESULT_INVALID");
  });
  it("of another source is not the page's", async () => {
    await open(() => assert.fail());
    await script.send(script.call("a", { source: "native" }));
    await pass(5000);
    assert.equal(claims().length, 0);
  });
  it("gets arguments of its own", async () => {
    const events = [];
    await open((args) => (args.list.push(1), args));
    session.onEvent((e) => events.push(e));
    await script.send(script.call("a", { args: { list: [] } }));
    await pass(200);
    assert.deepEqual([results()[0].output, events[0].args], [{ list: [1] }, { list: [] }]);
  });
  it("is claimed at once by who started the turn, later by others, last by who has no handler", async () => {
    await open(() => 1);
    const at = () => claims().map((r) => r.at - start);
    script.answers["POST turns"] = () => json({ id: "turn", outcome: null }, 202);
    session.sendText("hello").catch(() => {});
    await settle();
    let start = Date.now();
    await script.send(script.call("a"), script.call("b", { turn_id: "other" }), script.call("c", { turn_id: "other", tool: "unknown" }));
    await pass(5000);
    assert.deepEqual(at(), [0, 100, 2000]);
  });
});

describe("in a browser", () => {
  const saved = {};
  let page, window, locks;
  const define = (name, value) => {
    saved[name] ??= Object.getOwnPropertyDescriptor(globalThis, name) ?? null;
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  };
  beforeEach(() => {
    page = Object.assign(new EventTarget(), { visibilityState: "visible" });
    window = new EventTarget();
    const store = new Map();
    locks = new Map();
    define("document", page);
    define("addEventListener", window.addEventListener.bind(window));
    define("sessionStorage", { getItem: (k) => store.get(k) ?? null, setItem: (k, v) => store.set(k, v) });
    define("navigator", {
      locks: {
        async request(name, { signal }, held) {
          while (locks.has(name)) {
            signal.throwIfAborted();
            await Promise.race([locks.get(name), new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))]);
          }
          const done = Promise.resolve(held()).then(() => locks.delete(name));
          locks.set(name, done);
          await done;
        },
      },
    });
  });
  afterEach(async () => {
    window.dispatchEvent(new Event("pagehide"));
    session?.close();
    await settle();
    for (const [name, descriptor] of Object.entries(saved)) descriptor ? Object.defineProperty(globalThis, name, descriptor) : delete globalThis[name];
  });
  const claims = () => script.of("POST tool_calls").filter((r) => r.key.endsWith("/claim"));
  const who = async (id) => {
    await script.send(script.call(id));
    await pass(700);
    return claims().at(-1).body.client_id;
  };
  const anonymous = { clientId: undefined };

  it("a hidden tab claims later and for longer", async () => {
    await open(() => new Promise(() => {}));
    page.visibilityState = "hidden";
    let start = Date.now();
    await script.send(script.call("a"));
    await pass(1000);
    assert.deepEqual(claims().map((r) => [r.at - start, r.body.lease_ms]), [[500, 90_000]]);
    page.visibilityState = "visible";
    await script.send(script.call("b"));
    await pass(200);
    assert.equal(claims().at(-1).body.lease_ms, 15_000);
    const before = claims().length;
    page.visibilityState = "hidden";
    page.dispatchEvent(new Event("visibilitychange"));
    await settle();
    assert.deepEqual(claims().slice(before).map((r) => [r.key, r.body.lease_ms]), [["POST tool_calls/b/claim", 90_000]], "a tab that becomes hidden prolongs its leases");
  });
  it("coming back online or to the front connects at once", async () => {
    await open();
    script.answers["GET events"] = () => Promise.reject(new TypeError("refused"));
    script.close();
    await pass(40_000);
    delete script.answers["GET events"];
    let before = script.streams().length;
    window.dispatchEvent(new Event("online"));
    await settle();
    assert.deepEqual([script.streams().length, session.getConnection()], [before + 1, "open"]);
    await pass(25_000);
    page.dispatchEvent(new Event("visibilitychange"));
    await pass(500);
    assert.equal(script.streams().length, before + 2, "25 s of silence are too much for a tab that just woke up");
    page.dispatchEvent(new Event("visibilitychange"));
    await pass(500);
    assert.equal(script.streams().length, before + 2);
  });
  it("a page in the back/forward cache holds neither stream nor lock, and calls only for a moment", async () => {
    let ran = 0;
    await open(() => (ran++, new Promise(() => {})), {}, anonymous);
    const id = await who("a");
    window.dispatchEvent(new Event("pagehide"));
    assert.deepEqual(claims().at(-1).body, { client_id: id, lease_ms: 5000 });
    await settle();
    await pass(60_000);
    assert.deepEqual([script.streams().length, script.streams()[0].signal.aborted, locks.size], [1, true, 0]);
    window.dispatchEvent(new Event("pageshow"));
    await settle();
    assert.deepEqual([script.streams().length, session.getConnection(), ran], [2, "open", 1]);
    assert.deepEqual(claims().at(-1).body, { client_id: id, lease_ms: 15_000 });
    assert.equal(await who("b"), id);
  });
  it("a reloaded tab is the same client, a duplicated one is not", async () => {
    await open(() => 1, {}, anonymous);
    const id = await who("a");
    await open(() => 1, {}, anonymous); // sessionStorage is copied, the lock is held
    const other = await who("b");
    assert.notEqual(other, id);
    window.dispatchEvent(new Event("pagehide"));
    await settle();
    await open(() => 1, {}, anonymous);
    assert.equal(await who("c"), other);
  });
  it("a listener that throws stops nothing", async () => {
    await open();
    const seen = [];
    session.onStatus(() => {
      throw new Error("mine");
    });
    session.onStatus((s) => seen.push(s));
    const thrown = [];
    mock.method(globalThis, "queueMicrotask", (fn) => thrown.push(fn));
    await script.send(script.event("status_changed", { status: "running" }));
    assert.deepEqual(seen, ["running"]);
    assert.throws(thrown[0], /mine/);
  });
});
