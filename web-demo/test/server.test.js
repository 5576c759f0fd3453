// client.js against the real server. The model is `demo`, which makes exactly the calls of lines `call NAME {json}`.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, it } from "node:test";
import { defineTool, Treadle, TreadleError } from "../client.js";
import { deferred, Server, treadleBinary, until } from "./harness.js";

let server;
let handles = [];
before(async () => {
  server = await new Server(treadleBinary()).start();
});
after(() => server.stop());
afterEach(() => {
  for (const session of handles) session.close();
  handles = [];
});

const keep = (session) => (handles.push(session), session);
const tool = (name, handler, more) => defineTool({ name, description: `The tool ${name}.`, argsSchema: { type: "object" }, handler, ...more });
const connect = (options) => new Treadle({ baseUrl: server.url, ...options });
const create = async (tools, options) => keep(await connect(options).createSession({ skills: { tools } }));
const resume = async (id, options, client) => keep(await connect(client).resumeSession(id, options));
const code = (expected) => (e) => e instanceof TreadleError && assert.equal(e.code, expected, e.message) === undefined;
const resultOf = (turn) => turn.toolResults.map((r) => r.result);
const never = () => new Promise(() => {});
/** A handler that notes its contexts and waits for release. */
function gate() {
  const g = { calls: [], release: deferred(), entered: deferred() };
  g.handler = (args, ctx) => {
    g.calls.push(ctx);
    g.entered.resolve(ctx);
    return g.release.promise;
  };
  g.aborted = async () => {
    const ctx = await g.entered.promise;
    if (!ctx.signal.aborted) await new Promise((resolve) => ctx.signal.addEventListener("abort", resolve));
    return ctx.signal.reason;
  };
  return g;
}

describe("a turn", () => {
  it("runs a tool and tells what happens", async () => {
    const session = await create([tool("add", ({ a, b }, ctx) => ({ sum: a + b, turn: ctx.turnId, call: ctx.toolCallId }))]);
    const chat = [], statuses = [], events = [], connections = [];
    session.onChat((m) => chat.push(m));
    session.onStatus((s) => statuses.push(s));
    session.onConnection((c) => connections.push(c));
    session.onEvent((e, meta) => events.push([e.type, meta.replay]));
    assert.equal(session.getStatus(), "idle");
    assert.equal(session.getConnection(), "connecting");

    const turn = await session.sendText('call add {"a": 2, "b": 3}');

    const [result] = turn.toolResults;
    assert.deepEqual(result.args, { a: 2, b: 3 });
    assert.deepEqual(result.result, { ok: true, output: { sum: 5, turn: turn.turnId, call: result.toolCallId } });
    assert.equal(result.settledBy, "page");
    assert.equal(turn.outcome, "completed");
    assert.match(turn.text, /^add returned/);
    await until(() => session.getStatus() === "idle");
    assert.deepEqual(statuses, ["running", "waiting_tool_result", "running", "idle"]);
    assert.deepEqual(connections, ["open"]);
    assert.equal(events[0][0], "session_created");
    assert.ok(events.some(([type]) => type === "tool_claimed"));

    assert.deepEqual(chat[0], { role: "user", turnId: turn.turnId, step: 0, text: 'call add {"a": 2, "b": 3}', delta: 'call add {"a": 2, "b": 3}', done: true, voided: false });
    for (const step of [1, 2]) {
      const pieces = chat.filter((m) => m.step === step);
      assert.equal(pieces.map((m) => m.delta).join(""), pieces.at(-1).text);
      assert.deepEqual(pieces.map((m) => m.done), pieces.map((_, i) => i === pieces.length - 1));
    }
    assert.equal(chat.at(-1).text, turn.text);

    const late = [];
    session.onChat((m) => late.push([m.role, m.step, m.text === m.delta, m.done]));
    await null;
    assert.deepEqual(late, [["user", 0, true, true], ["assistant", 1, true, true], ["assistant", 2, true, true]]);
  });

  it("is not started with a signal that is none", async () => {
    const session = await create([]);
    await assert.rejects(session.sendText("hello", { signal: new AbortController() }), { code: "INVALID_INPUT", message: /AbortSignal/ });
    assert.match((await session.sendText("hello")).text, /./);
  });

  it("runs parallel calls side by side", async () => {
    const both = [deferred(), deferred()];
    const meet = ({ i }) => (both[i].resolve(), Promise.all(both.map((d) => d.promise)).then(() => i));
    const session = await create([tool("meet", meet)]);
    const turn = await session.sendText('call meet {"i": 0}\ncall meet {"i": 1}');
    assert.deepEqual(resultOf(turn), [{ ok: true, output: 0 }, { ok: true, output: 1 }]);
  });

  it("turns whatever a handler does into a result", async () => {
    class Board {}
    const cases = {
      throws: [() => { throw new TypeError("no board"); }, { code: "TOOL_HANDLER_ERROR", message: "no board" }],
      throws_nothing: [() => { throw undefined; }, { code: "TOOL_HANDLER_ERROR", message: "The handler of throws_nothing failed." }],
      rejects: [async () => { throw "text"; }, { code: "TOOL_HANDLER_ERROR", message: "text" }],
      error: [() => ({ error: { code: "FULL", message: "no room", details: { max: 3 }, retryable: true } }), { code: "FULL", message: "no room", details: { max: 3 }, retryable: true }],
      not_error: [() => ({ error: "text" }), { error: "text" }],
      nothing: [() => {}, null],
      surrogate: [() => "half \ud83d", "half \ufffd"],
      instance: [() => ({ board: new Board() }), { code: "TOOL_RESULT_NOT_JSON", message: "$.board: an instance of Board is not JSON; return a plain object" }],
      bad_details: [() => ({ error: { code: "X", message: "y", details: 1n } }), { code: "TOOL_RESULT_NOT_JSON", message: "$.error.details: a BigInt is not JSON; use a string" }],
      large: [() => "x".repeat(5 << 20), { code: "TOOL_RESULT_TOO_LARGE", message: /more than 4194304 characters/ }],
      large_in_bytes: [() => "\u4e16".repeat(2 << 20), { code: "TOOL_RESULT_TOO_LARGE", message: /4/ }],
    };
    const session = await create(Object.entries(cases).map(([name, [handler]]) => tool(name, handler)));
    const turn = await session.sendText(Object.keys(cases).map((name) => `call ${name} {}`).join("\n"));
    for (const [i, [name, [, expected]]] of Object.entries(cases).entries()) {
      const { ok, output, error } = turn.toolResults[i].result;
      if (expected?.message instanceof RegExp) {
        assert.equal(error.code, expected.code, name);
        assert.match(error.message, expected.message);
      } else assert.deepEqual(ok ? output : error, expected, name);
    }
  });

  it("tells the model when the output does not satisfy the result schema", async () => {
    const session = await create([tool("count", () => "three", { resultSchema: { type: "integer" } })]);
    const [result] = resultOf(await session.sendText("call count {}"));
    assert.equal(result.error.code, "TOOL_RESULT_INVALID");
  });

  it("prefers named, inline and fallback handlers in this order", async () => {
    const session = await create([tool("a", () => "inline"), tool("b")]);
    const ask = async () => resultOf(await session.sendText("call a {}\ncall b {}")).map((r) => r.output);
    const offFallback = session.onTool((name, args, ctx) => `fallback ${name} ${ctx.tool}`);
    assert.deepEqual(await ask(), ["inline", "fallback b b"]);
    const offNamed = session.onTool("a", () => "named");
    const offLast = session.onTool("a", () => "last");
    session.onTool("b", () => "named");
    offFallback();
    assert.deepEqual(await ask(), ["last", "named"]);
    offLast();
    assert.deepEqual(await ask(), ["named", "named"]);
    offNamed();
    offNamed();
    assert.deepEqual(await ask(), ["inline", "named"]);
  });

  it("answers TOOL_HANDLER_NOT_FOUND after a while, unless a handler comes", async () => {
    const session = await create([tool("a"), tool("b")]);
    session.onStatus((status) => status === "waiting_tool_result" && session.onTool("b", () => "late"));
    const [a, b] = resultOf(await session.sendText("call a {}\ncall b {}"));
    assert.equal(a.error.code, "TOOL_HANDLER_NOT_FOUND");
    assert.equal(b.output, "late");
  });

  it("rejects with what went wrong", async () => {
    const g = gate();
    const session = await create([tool("wait", g.handler), tool("strict", () => {}, { argsSchema: { type: "object", required: ["x"] } })]);
    const turn = session.sendText("call wait {}", { idempotencyKey: "once" });
    const { turnId } = await g.entered.promise;
    await assert.rejects(session.sendText("more"), (e) => code("SESSION_BUSY")(e) && e.details.turnId === turnId && e.details.status === 409);
    const again = session.sendText("call wait {}", { idempotencyKey: "once" });
    g.release.resolve(1);
    assert.deepEqual(await again, await turn);
    await assert.rejects(session.sendText("hello", { model: "nosuch" }), code("MODEL_UNAVAILABLE"));
    await assert.rejects(session.sendText("call wait {}", { maxSteps: 1 }), (e) => code("MAX_STEPS")(e) && e.details.outcome === "failed" && e.details.toolResults.length === 1);
    await assert.rejects(connect().resumeSession("nosuch"), code("SESSION_NOT_FOUND"));
    await assert.rejects(connect().createSession({ model: "nosuch" }), code("MODEL_UNAVAILABLE"));
    await assert.rejects(connect().createSession({ skills: { tools: [tool("t", undefined, { argsSchema: { type: "nonsense" } })] } }), code("INVALID_INPUT"));
  });

  it("sees tools replaced", async () => {
    const session = await create([tool("a", () => "old")]);
    for (const name of ["b", "", undefined]) assert.throws(() => session.onTool(name, () => {}), code("INVALID_INPUT"));
    assert.throws(() => session.onTool("a"), code("INVALID_INPUT"));
    assert.throws(() => session.onChat("a"), code("INVALID_INPUT"));
    assert.equal(await session.replaceTools([tool("b", () => "new")], { guidance: "B now." }), session);
    assert.deepEqual(resultOf(await session.sendText("call b {}")), [{ ok: true, output: "new" }]);
    const state = await session.getState();
    assert.deepEqual([state.skills.guidance, state.skills.tools[0].name, state.skills.tools[0].argsSchema], ["B now.", "b", { type: "object" }]);
  });

  it("carries progress, which extends the deadline", async () => {
    const moved = deferred();
    const session = await create([
      tool("slow", async (args, ctx) => {
        const before = ctx.deadline;
        assert.throws(() => ctx.progress({ fraction: 2 }), code("INVALID_INPUT"));
        for (let i = 0; i <= 100; i++) ctx.progress({ message: `row ${i}`, fraction: i / 100 });
        await moved.promise;
        return ctx.deadline > before;
      }, { timeoutMs: 5000, maxTimeoutMs: 60_000 }),
    ]);
    const seen = [];
    session.onEvent((e) => {
      if (e.type !== "tool_progress") return;
      seen.push(e.message);
      if (e.fraction === 1) moved.resolve();
    });
    assert.deepEqual(resultOf(await session.sendText("call slow {}")), [{ ok: true, output: true }]);
    assert.deepEqual(seen, ["row 0", "row 100"]);
  });
});

describe("an end of a call", () => {
  const endings = {
    "a timeout": { more: { timeoutMs: 300 }, act: () => {}, reason: "TOOL_TIMEOUT", turn: "completed" },
    cancel: { act: (session) => session.cancel(), reason: "TOOL_CANCELED", turn: "TURN_CANCELED" },
    "the signal of sendText": { act: (session, abort) => abort.abort(), reason: "TOOL_CANCELED", turn: "TURN_CANCELED" },
    end: { act: (session) => session.end(), reason: "TOOL_CANCELED", turn: "TURN_CANCELED" },
    close: { act: (session) => session.close(), reason: "SESSION_CLOSED", turn: "SESSION_CLOSED" },
    "another client's answer": {
      act: async (session, abort, ctx) => {
        const body = JSON.stringify({ output: 1, claim_id: ctx.claimId });
        await fetch(`${server.url}/v1/sessions/${session.id}/tool_calls/${ctx.toolCallId}/result`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
      },
      reason: "TOOL_CALL_SETTLED",
      turn: "completed",
    },
  };
  for (const [name, { more, act, reason, turn }] of Object.entries(endings)) {
    it(`by ${name} aborts the handler's signal`, async () => {
      const g = gate();
      let claimId;
      const spy = async (url, init) => {
        const response = await fetch(url, init);
        if (String(url).endsWith("/claim")) ({ claim_id: claimId } = await response.clone().json());
        return response;
      };
      const session = await create([tool("ask", g.handler, more)], { fetch: spy });
      const abort = new AbortController();
      const outcome = session.sendText("call ask {}", { signal: abort.signal }).then((t) => t.outcome, (e) => e.code);
      const ctx = await g.entered.promise;
      await act(session, abort, { ...ctx, claimId });
      assert.equal((await g.aborted()).code, reason);
      assert.equal(await outcome, turn);
      assert.equal(g.calls.length, 1);
    });
  }

  it("of the session is told once", async () => {
    const session = await create([]);
    const ended = [];
    session.onEnded((e) => ended.push(e));
    await session.end();
    assert.deepEqual([ended, session.getStatus(), session.getConnection()], [[{ deleted: false }], "ended", "closed"]);
    await assert.rejects(session.sendText("hello"), code("SESSION_ENDED"));
    await session.cancel();

    const again = await resume(session.id);
    assert.equal(again.getStatus(), "ended");
    again.onEnded((e) => ended.push(e));
    await until(() => again.getConnection() === "closed");
    const plain = await resume(session.id, { history: false });
    plain.onEnded((e) => ended.push(e));
    await until(() => plain.getConnection() === "closed");
    assert.equal(ended.length, 3);
  });

  it("by deletion aborts and ends", async () => {
    const g = gate();
    const session = await create([tool("ask", g.handler)]);
    const ended = deferred();
    session.onEnded(ended.resolve);
    const turn = assert.rejects(session.sendText("call ask {}"));
    await g.entered.promise;
    await fetch(`${server.url}/v1/sessions/${session.id}`, { method: "DELETE" });
    await ended.promise;
    await g.aborted();
    await turn;
    assert.equal(session.getStatus(), "ended");
  });

  it("leaves nothing to cancel when no turn runs", async () => {
    const session = await create([]);
    await session.cancel();
    assert.equal(session.getStatus(), "idle");
    const aborted = AbortSignal.abort();
    await assert.rejects(session.sendText("hello", { signal: aborted }), code("TURN_CANCELED"));
  });
});

describe("two clients", () => {
  it("run a side effect once", async () => {
    const ran = { a: 0, b: 0 };
    const first = await create([tool("pay", () => ++ran.a)]);
    const second = await resume(first.id, { tools: [tool("pay", () => ++ran.b)] });
    await until(() => first.getConnection() === "open" && second.getConnection() === "open");
    for (let i = 0; i < 10; i++) await (i % 2 ? first : second).sendText("call pay {}\ncall pay {}");
    assert.equal(ran.a + ran.b, 20);
    assert.deepEqual(ran, { a: 10, b: 10 }, "who starts a turn runs its calls");
  });

  it("leave a call to the one that has a handler", async () => {
    const first = await create([tool("ask"), tool("other")]);
    const watcher = await resume(first.id, { observe: true });
    const second = await resume(first.id, { tools: [tool("ask", () => "second")] });
    await until(() => second.getConnection() === "open" && watcher.getConnection() === "open");
    assert.deepEqual(resultOf(await first.sendText("call ask {}")), [{ ok: true, output: "second" }]);
  });

  it("keep a call as long as its handler runs", async () => {
    const g = gate();
    let claims = 0;
    const counting = (url, init) => ((claims += /\/claim$/.test(url) ? 1 : 0), fetch(url, init));
    const first = await create([tool("ask", g.handler)], { leaseMs: 1000, fetch: counting });
    let taken = 0;
    const second = await resume(first.id, { tools: [tool("ask", () => ++taken)] });
    const shown = [];
    second.onEvent((e) => e.type === "tool_claimed" && shown.push(e.client_id));
    const turn = first.sendText("call ask {}");
    await until(() => claims >= 5, "four renewals");
    g.release.resolve("kept");
    assert.deepEqual(resultOf(await turn), [{ ok: true, output: "kept" }]);
    assert.deepEqual([taken, shown.length, g.calls[0].attempt, g.calls[0].mayHaveRun], [0, 1, 1, false]);
  });

  it("take over from one that fell silent, whose late answer is dropped", async () => {
    const g = gate();
    let claimed = 0;
    const mute = (url, init) => (/\/claim$/.test(url) && claimed++ ? Promise.reject(new Error("frozen")) : fetch(url, init));
    const first = await create([tool("ask", g.handler)], { leaseMs: 1000, fetch: mute });
    const taken = [];
    const second = await resume(first.id, { tools: [tool("ask", (args, ctx) => taken.push(ctx) && "second")] });
    const errors = [];
    first.onError((e) => errors.push(e));
    const turn = await first.sendText("call ask {}");
    assert.deepEqual(resultOf(turn), [{ ok: true, output: "second" }]);
    assert.deepEqual([taken[0].attempt, taken[0].mayHaveRun, (await g.aborted()).code], [2, true, "TOOL_CALL_SETTLED"]);
    g.release.resolve("late");
    assert.deepEqual(resultOf(await second.sendText("call ask {}"))[0].ok, true);
    assert.deepEqual(errors, []);
  });
});

describe("a reload", () => {
  it("offers pending calls again at once, and no others", async () => {
    const g = gate();
    let settled = 0;
    const tools = (handler) => [tool("done", () => ++settled), tool("ask", handler)];
    const before = await create(tools(g.handler), { clientId: "tab-1" });
    await before.sendText("call done {}");
    before.sendText("call ask {}").catch(() => {});
    await g.entered.promise;
    before.close();

    const started = Date.now();
    const g2 = gate();
    const session = await resume(before.id, { tools: tools(g2.handler) }, { clientId: "tab-1" });
    const chat = [], replays = [], statuses = [];
    session.onChat((m) => chat.push([m.role, m.text]));
    session.onEvent((e, { replay }) => replays.push(replay));
    session.onStatus((s) => statuses.push(s));
    const ctx = await g2.entered.promise;
    assert.ok(Date.now() - started < 1500, `it took ${Date.now() - started} ms`);
    assert.deepEqual([ctx.attempt, ctx.mayHaveRun, settled], [1, true, 1]);
    assert.equal(session.getStatus(), "waiting_tool_result");
    assert.deepEqual(chat.map(([role]) => role), ["user", "assistant", "assistant", "user", "assistant"]);
    assert.deepEqual(statuses, [], "history does not change the status");
    assert.equal(replays[0], true);
    const idle = deferred();
    session.onStatus((s) => s === "idle" && idle.resolve());
    g2.release.resolve("after");
    await idle.promise;
    const state = await session.getState();
    assert.deepEqual([state.pendingToolCalls, g2.calls.length, settled], [[], 1, 1]);
    assert.match(chat.at(-1)[1], /ask returned "after"/);
  });

  it("as another client waits for the lease", async () => {
    const g = gate();
    const before = await create([tool("ask", g.handler)], { leaseMs: 1000 });
    before.sendText("call ask {}").catch(() => {});
    await g.entered.promise;
    const state = await before.getState();
    assert.equal(state.pendingToolCalls[0].claim.clientId.length, 32);
    before.close();
    for (const history of [true, false]) {
      const g2 = gate();
      const session = await resume(before.id, { tools: [tool("ask", g2.handler)], history }, { leaseMs: 1000 });
      const ctx = await g2.entered.promise;
      assert.deepEqual([ctx.attempt, ctx.mayHaveRun], [history ? 2 : 3, true]);
      session.close();
    }
  });

  it("can leave out the history", async () => {
    const before = await create([tool("add", () => 1)]);
    await before.sendText("call add {}");
    const session = await resume(before.id, { tools: [tool("add", () => 2)], history: false });
    const events = [];
    session.onEvent((e) => events.push(e.type));
    const turn = await session.sendText("call add {}");
    assert.equal(turn.toolResults[0].result.output, 2);
    assert.equal(events[0], "turn_started");
    await until(() => before.getStatus() === "idle");
  });

  it("reads a long history by pages", async () => {
    const before = await create([tool("n", ({ i }) => i)]);
    for (let i = 0; i < 25; i++) await before.sendText(`call n {"i": ${i}}`);
    const session = await resume(before.id);
    const ids = new Set();
    let count = 0, finals = 0;
    session.onEvent((e, { id }) => (ids.add(id), count++));
    session.onChat((m) => (finals += m.done));
    await until(() => session.getConnection() === "open");
    assert.ok(count > 200, `${count} events`);
    assert.deepEqual([ids.size, finals], [count, 75]);
  });
});

describe("a server that fails", () => {
  let own;
  before(async () => {
    own = await new Server(treadleBinary()).start();
  });
  after(() => own.stop());

  it("may be killed and started again under a pending call", async () => {
    const g = gate();
    const session = keep(await new Treadle({ baseUrl: own.url }).createSession({ skills: { tools: [tool("ask", g.handler)] } }));
    const connections = [], errors = [], offers = [];
    session.onConnection((c) => connections.push(c));
    session.onError((e) => errors.push(e));
    session.onEvent((e) => e.type === "tool_call" && offers.push(e.attempt));
    const turn = session.sendText("call ask {}");
    const ctx = await g.entered.promise;
    await own.kill();
    await until(() => session.getConnection() === "reconnecting");
    g.release.resolve("survived");
    await own.start();
    const result = await turn;
    assert.deepEqual(resultOf(result), [{ ok: true, output: "survived" }]);
    assert.deepEqual([g.calls.length, ctx.signal.aborted, errors], [1, false, []]);
    assert.deepEqual(connections, ["open", "reconnecting", "open"]);
  });

  it("may be restarted while the handler goes on running", async () => {
    const g = gate();
    const session = keep(await new Treadle({ baseUrl: own.url, leaseMs: 1000 }).createSession({ skills: { tools: [tool("ask", g.handler)] } }));
    const turn = session.sendText("call ask {}");
    await g.entered.promise;
    await own.kill("SIGTERM");
    await new Promise((resolve) => setTimeout(resolve, 1100)); // the lease runs out meanwhile
    await own.start();
    const claimed = deferred();
    session.onEvent((e) => e.type === "tool_claimed" && claimed.resolve());
    await claimed.promise;
    await until(() => session.getConnection() === "open");
    g.release.resolve("once");
    assert.deepEqual(resultOf(await turn), [{ ok: true, output: "once" }]);
    assert.equal(g.calls.length, 1);
  });

  it("may be killed at any moment without a call that runs twice or a result that is lost", async () => {
    const given = new Map();
    const nonce = tool("nonce", (args, ctx) => {
      assert.ok(!given.has(ctx.toolCallId), "the handler ran twice for one call");
      given.set(ctx.toolCallId, Math.random());
      return given.get(ctx.toolCallId);
    });
    const session = keep(await new Treadle({ baseUrl: own.url }).createSession({ skills: { tools: [nonce] } }));
    let isOver = false;
    const turns = [];
    const talk = (async () => {
      while (!isOver) turns.push(await session.sendText("call nonce {}\ncall nonce {}"));
    })();
    for (let i = 0; i < 4; i++) {
      const seen = turns.length;
      await until(() => turns.length > seen, "another turn", 30_000);
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 100));
      await own.kill();
      await own.start();
    }
    isOver = true;
    await talk;
    const results = turns.flatMap((turn) => turn.toolResults);
    assert.equal(results.length, 2 * turns.length);
    for (const r of results) assert.equal(r.result.output, given.get(r.toolCallId));
    assert.equal(given.size, results.length);
  });

  it("and forgets everything closes the session", async () => {
    const g = gate();
    const session = keep(await new Treadle({ baseUrl: own.url }).createSession({ skills: { tools: [tool("ask", g.handler)] } }));
    const failed = deferred();
    session.onError(failed.resolve);
    const turn = session.sendText("call ask {}");
    await g.entered.promise;
    await own.kill();
    own.wipe();
    const rejected = assert.rejects(turn, code("SESSION_NOT_FOUND"));
    await own.start();
    assert.equal((await failed.promise).code, "SESSION_NOT_FOUND");
    assert.equal(session.getConnection(), "closed");
    assert.equal((await g.aborted()).code, "SESSION_NOT_FOUND");
    await rejected;
    await assert.rejects(session.sendText("hello"), code("SESSION_NOT_FOUND"));
  });
});
