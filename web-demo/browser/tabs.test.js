// Two pages on one session: who runs a call, who takes it over, and whose answer counts.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, it } from "node:test";
import { ask, Browser, Demo, eventsOf, Site, startServer, until } from "./harness.js";

let server, site;
const browser = new Browser();
before(async () => {
  site = await new Site().start();
  [server] = await Promise.all([startServer("--allow-origin", site.url), browser.start()]);
});
after(() => Promise.all([browser.stop(), server?.stop(), site?.stop()]));
afterEach(() => browser.done());

/** Two tabs of one person with the same session of the demo. */
async function twoTabs() {
  const person = await browser.person();
  const first = await Demo.open(person, server.url);
  return [first, await Demo.open(person, first.page.url())];
}

/** Which of two tabs asks the person: as a rule the one that started the turn. @returns {Promise<Demo[]>} it, and the other one */
async function asking(first, second) {
  const holder = await Promise.any([first, second].map((tab) => tab.asked().then(() => tab)));
  return holder === first ? [first, second] : [second, first];
}

describe("two tabs of the demo", () => {
  it("show the same, and one of them runs the calls", async () => {
    const [first, second] = await twoTabs();
    await first.say("Add two blue triangles; then tidy up the board");
    await Promise.all([first.ended(1), second.ended(1)]);
    assert.deepEqual([await first.count(".shape"), await second.count(".shape")], [2, 2]);
    assert.deepEqual(await second.replies(1), await first.replies(1));
    const claims = await eventsOf(server.url, first.session, "tool_claimed");
    assert.deepEqual([claims.length, new Set(claims.map((claim) => claim.tool_call_id)).size], [2, 2], "a claim for each call");

    await second.say('ask me "What is your name?"');
    const [holder, other] = await asking(first, second);
    await other.page.waitForSelector(".turn:nth-of-type(2) .call[data-state=elsewhere]");
    assert.equal(await other.page.textContent("#status-text"), "Waiting for a tab");
    assert.equal(await other.count("dialog[open]"), 0);
    await other.page.click("#stop");
    await holder.notAsked();
    await Promise.all([first.ended(2, "canceled"), second.ended(2, "canceled")]);
  });

  it("hand over when the one that asks is closed, and when it crashes", async () => {
    const tabs = await twoTabs();
    await tabs[0].say('ask me "What is your name?"');
    const [first, second] = await asking(...tabs);
    const closed = Date.now();
    await first.page.close();
    await second.asked();
    const third = await Demo.open(second.page.context(), second.page.url());
    const crashed = Date.now();
    const crash = second.page.waitForEvent("crash");
    second.page.goto("chrome://crash").catch(() => {}); // which it does not survive
    await crash;
    await third.asked();
    for (const [what, since, until] of [["closing", closed, crashed], ["a crash", crashed, Date.now()]]) {
      assert.ok(until - since < 30_000, `${what} took ${until - since} ms`);
    }
    await third.page.fill("#ask-input", "Ada");
    await third.page.press("#ask-input", "Enter");
    await third.ended(1);
    const [, ...again] = await eventsOf(server.url, third.session, "tool_call");
    assert.deepEqual(again.map((call) => [call.attempt, call.may_have_run]), [[2, true], [3, true]]);
    const results = await eventsOf(server.url, third.session, "tool_result");
    assert.deepEqual(results.map((e) => e.result.output), [{ answer: "Ada" }]);
  });
});

/** A page with the SDK whose tool notes what it runs. */
async function counting(person, session) {
  const page = await person.newPage();
  await page.goto(site.url);
  await page.evaluate(async ([url, id]) => {
    const { defineTool, Treadle } = await import(`${url}/sdk/v1/client.js`);
    globalThis.ran = [];
    const handler = ({ n }) => ran.push(n);
    const tools = [defineTool({ name: "count", description: "Counts.", argsSchema: { type: "object", properties: { n: { type: "integer" } } }, handler })];
    const treadle = new Treadle();
    globalThis.session = id ? await treadle.resumeSession(id, { tools }) : await treadle.createSession({ skills: { tools } });
    await new Promise((resolve) => session.onConnection((state) => state === "open" && resolve()));
  }, [server.url, session]);
  return page;
}

/** A page that does without the SDK, and answers every call at once without a claim. */
async function blunt(session, name) {
  const page = await (await browser.person()).newPage();
  await page.goto(site.url);
  await page.evaluate(async ([url, name]) => {
    Object.assign(globalThis, { answers: [], settled: {} });
    const events = new EventSource(`${url}/events?after=latest`);
    events.addEventListener("tool_call", async ({ data }) => {
      const { tool_call_id: id } = JSON.parse(data);
      const body = JSON.stringify({ output: name });
      const response = await fetch(`${url}/tool_calls/${id}/result`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
      answers.push({ id, status: response.status, body: await response.json() });
    });
    events.addEventListener("tool_result", ({ data }) => {
      const { tool_call_id: id, result } = JSON.parse(data);
      settled[id] = result.output;
    });
    await new Promise((resolve) => events.addEventListener("ready", resolve));
  }, [`${server.url}/v1/sessions/${session}`, name]);
  return page;
}

const post = async (path, body) => {
  const response = await fetch(`${server.url}/v1/sessions${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  assert.ok(response.ok, `${path}: ${response.status} ${await response.clone().text()}`);
  return response.json();
};
const TOOL = { name: "side", description: "Has a side effect." };
const calls = (tool, n) => Array.from({ length: n }, (_, i) => `call ${tool} {"n": ${i}}`).join("\n");

describe("two pages that are offered the same call", () => {
  it("run it once between them, with the SDK", async () => {
    const person = await browser.person();
    const first = await counting(person);
    const second = await counting(person, await first.evaluate(() => session.id));
    for (const page of [first, second]) {
      const turn = await page.evaluate((text) => session.sendText(text), calls("count", 16));
      assert.equal(turn.toolResults.length, 16);
    }
    // The API starts the third turn, so neither page has a head start.
    const id = await first.evaluate(() => session.id);
    const { id: turn } = await post(`/${id}/turns`, { input: calls("count", 16) });
    assert.equal((await ask(server.url, id, `/turns/${turn}?wait=30`)).outcome, "completed");
    const ran = [...(await first.evaluate(() => ran)), ...(await second.evaluate(() => ran))];
    assert.deepEqual(ran.sort((a, b) => a - b), Array.from({ length: 48 }, (_, i) => Math.floor(i / 3)));
  });

  it("have one winner when both answer, and the other learns who won (C24)", async (t) => {
    const { id } = await post("", { skills: { tools: [TOOL] } });
    const pages = await Promise.all(["one", "two"].map((name) => blunt(id, name)));
    const trials = 208, atOnce = 16;
    for (let i = 0; i < trials; i += atOnce) {
      const { id: turn } = await post(`/${id}/turns`, { input: calls("side", atOnce) });
      assert.equal((await ask(server.url, id, `/turns/${turn}?wait=30`)).outcome, "completed");
    }
    for (const page of pages) {
      await until(() => page.evaluate((n) => answers.length === n && Object.keys(settled).length === n, trials), `${trials} answers and results`, 30_000);
    }
    const results = new Map((await eventsOf(server.url, id, "tool_result")).map((e) => [e.tool_call_id, e]));
    assert.equal(results.size, trials);
    assert.equal((await eventsOf(server.url, id, "tool_result")).length, trials, "one result for each call");
    const [one, two] = await Promise.all(pages.map(async (page) => new Map((await page.evaluate(() => answers)).map((answer) => [answer.id, answer]))));
    const seen = await Promise.all(pages.map((page) => page.evaluate(() => settled)));
    let wins = 0;
    for (const [call, { result, settled_by: settledBy }] of results) {
      const winner = result.output;
      const [won, lost] = winner === "one" ? [one, two] : [two, one];
      assert.equal(settledBy, "page");
      assert.equal(won.get(call).status, 200);
      assert.equal(lost.get(call).status, 409);
      assert.deepEqual([lost.get(call).body.code, lost.get(call).body.tool_call.result.output], ["TOOL_CALL_SETTLED", winner]);
      assert.deepEqual(seen.map((settled) => settled[call]), [winner, winner]);
      wins += winner === "one";
    }
    t.diagnostic(`page one won ${wins} of ${trials}`);
    for (const { text } of await eventsOf(server.url, id, "turn_completed")) {
      assert.equal(text.split("\n").length, atOnce, "the model was told one result for each call");
    }
  });
});

describe("a page that comes while a call is pending (C28)", () => {
  /** Opens a stream in a page and notes its calls and results until it has caught up. */
  const stream = (page, path) =>
    page.evaluate((url) => {
      const seen = [];
      const events = new EventSource(url);
      for (const type of ["tool_call", "tool_result"]) events.addEventListener(type, ({ data }) => seen.push([type, JSON.parse(data).tool_call_id]));
      return new Promise((resolve) => events.addEventListener("ready", ({ data }) => JSON.parse(data).caught_up && (events.close(), resolve(seen))));
    }, `${server.url}/v1/sessions${path}`);

  it("finds it in the state and in the stream, after what was answered, and may answer it", async () => {
    const { id } = await post("", { skills: { tools: [TOOL] } });
    const start = async () => {
      await post(`/${id}/turns`, { input: calls("side", 1) });
      const { tool_calls: [call] } = await ask(server.url, id, "/tool_calls?status=pending&wait=30");
      return call;
    };
    const old = await start();
    await post(`/${id}/tool_calls/${old.id}/result`, { output: 1 });
    await until(async () => (await ask(server.url, id)).status === "idle", "the end of the turn");
    const pending = await start();
    const page = await (await browser.person()).newPage();
    await page.goto(site.url);
    for (let load = 0; load < 2; load++) {
      const state = await ask(server.url, id);
      const [found, ...more] = state.pending_tool_calls;
      assert.deepEqual([found.id, found.tool, found.args, more.length], [pending.id, "side", { n: 0 }, 0]);
      assert.ok(Date.parse(found.deadline) > Date.now());
      const whole = [["tool_call", old.id], ["tool_result", old.id], ["tool_call", pending.id]];
      assert.deepEqual(await stream(page, `/${id}/events`), whole);
      assert.deepEqual(await stream(page, `/${id}/events?after=${state.cursor}`), []);
      assert.deepEqual(await stream(page, `/${id}/events?after=latest`), [["tool_call", pending.id]]);
      await page.reload();
    }
    const third = await (await browser.person()).newPage();
    await third.goto(site.url);
    const status = await third.evaluate(async (url) => {
      const answer = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"output": 2}' });
      return answer.status;
    }, `${server.url}/v1/sessions/${id}/tool_calls/${pending.id}/result`);
    assert.equal(status, 200);
    await until(async () => (await ask(server.url, id)).status === "idle", "the end of the turn");
    assert.deepEqual((await eventsOf(server.url, id, "tool_result")).map((e) => e.result.output), [1, 2]);
  });
});
