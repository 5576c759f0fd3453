// The server is killed without warning and started again, under pages that are in use.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, it } from "node:test";
import { Browser, Demo, eventsOf, Site, startScripted, until } from "./harness.js";

const STORY = Array.from({ length: 150 }, (_, i) => `word${i}`).join(" ");
const QUESTION = { tool: "ask_user", args: { question: "What is your name?" } };

let server, site;
const browser = new Browser();
before(async () => {
  const story = { text: STORY, chunk: 8, every: "25ms" };
  site = await new Site().start();
  [server] = await Promise.all([
    startScripted({ story: [[story]], name: [[{ call: QUESTION }], [{ text: "Thank you." }]], quick: [[{ text: "Done." }]] }, "--allow-origin", site.url),
    browser.start(),
  ]);
});
after(() => Promise.all([browser.stop(), server?.stop(), server?.forget(), site?.stop()]));
afterEach(() => browser.done());

const open = async () => Demo.open(await browser.person(), server.url);
const restart = async (meanwhile = async () => {}) => {
  await server.kill();
  await meanwhile();
  await server.start();
};

describe("a server that is killed and started again", () => {
  it("goes on with the turn whose question is open", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say("name");
    await demo.asked();
    await page.fill("#ask-input", "Ad");
    await restart(() => page.waitForSelector("#connection[data-state=reconnecting]"));
    await demo.live();
    await demo.asked();
    assert.equal(await page.inputValue("#ask-input"), "Ad", "it is the same question, not a new one");
    await page.fill("#ask-input", "Ada");
    await page.press("#ask-input", "Enter");
    await demo.ended(1);
    assert.deepEqual(await demo.replies(1), ["Thank you."]);
    assert.equal(await demo.count(".call"), 1);
    assert.equal(await demo.count("#notice:not([hidden])"), 0);
    const events = await eventsOf(server.url, demo.session);
    const times = (type) => events.filter((event) => event.type === type).length;
    assert.deepEqual(["turn_started", "tool_result", "turn_completed"].map(times), [1, 1, 1]);
  });

  it("gets the answer that was given while it was away", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say("name");
    await demo.asked();
    await restart(async () => {
      await page.waitForSelector("#connection[data-state=reconnecting]");
      await page.fill("#ask-input", "Ada");
      await page.press("#ask-input", "Enter");
      await demo.notAsked();
    });
    await demo.ended(1);
    const results = await eventsOf(server.url, demo.session, "tool_result");
    assert.deepEqual(results.map((e) => [e.settled_by, e.result.output]), [["page", { answer: "Ada" }]]);
  });

  it("goes on with the turn whose answer was streaming, without a word twice", async () => {
    const demo = await open();
    const { page } = demo;
    await page.evaluate((story) => {
      globalThis.wrong = [];
      const look = () => document.querySelectorAll(".reply").forEach(({ textContent: text }) => story.startsWith(text) || wrong.push(text));
      new MutationObserver(look).observe(document.getElementById("turns"), { subtree: true, childList: true, characterData: true });
    }, STORY);
    await demo.say("story");
    await page.waitForSelector('.reply.streaming:has-text("word20 ")');
    await restart(() => page.waitForSelector("#connection[data-state=reconnecting]"));
    await demo.ended(1);
    assert.deepEqual(await demo.replies(1), [STORY]);
    assert.deepEqual(await page.evaluate(() => wrong), [], "at no time");
    assert.equal(await demo.count(".turn"), 1);
    assert.equal(await demo.count(".activity-turn"), 1);
    const voided = await eventsOf(server.url, demo.session, "attempt_voided");
    assert.equal(voided.length, 1, "the kill hit the stream");
    await page.reload();
    await demo.ended(1);
    assert.deepEqual(await demo.replies(1), [STORY]);
  });

  it("takes the message that was sent while it was away, once", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say("quick");
    await demo.ended(1);
    await restart(async () => {
      await page.waitForSelector("#connection[data-state=reconnecting]");
      await demo.say("quick");
      await page.waitForSelector(".turn.sending");
    });
    await demo.ended(2);
    assert.equal(await demo.count(".turn"), 2);
    assert.deepEqual(await demo.replies(2), ["Done."]);
    assert.equal((await eventsOf(server.url, demo.session, "turn_started")).length, 2);
  });

  it("keeps the promise of sendText, on a page of another origin", async () => {
    const page = await (await browser.person()).newPage();
    await page.goto(site.url);
    await page.evaluate(async (url) => {
      const { Treadle } = await import(`${url}/sdk/v1/client.js`);
      globalThis.session = await new Treadle().createSession();
      globalThis.said = [];
      session.onChat((message) => said.push(message));
      globalThis.turn = session.sendText("story");
    }, server.url);
    await page.waitForFunction(() => globalThis.said.at(-1)?.text.includes("word20 "));
    await restart();
    assert.equal(await page.evaluate(async () => (await globalThis.turn).text), STORY);
    const { voided, pieces, states } = await page.evaluate(() => {
      const last = said.findLastIndex((message) => message.voided);
      return { voided: last > 0, pieces: said.slice(last + 1).map((message) => message.delta).join(""), states: session.getStatus() };
    });
    assert.ok(voided);
    assert.equal(pieces, STORY);
    await until(() => page.evaluate(() => session.getStatus() === "idle"), `idle after ${states}`);
  });
});
