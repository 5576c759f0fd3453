// What the browser tests share: Chromium, pages of another origin, the demo page, and the server's own view of a session.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { Server, treadleBinary } from "../test/harness.js";

export { until } from "../test/harness.js";

/** How long a condition may take on a machine that is busy with other things. */
const PATIENCE = 45_000;
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

/** A server of the binary under test. @param {...string} args further flags of `serve` */
export const startServer = (...args) => new Server(treadleBinary(), ...args).start();

/**
 * A server whose model plays a script; forget() removes that.
 * @param {Record<string, object[][]>} rules the answers, step by step, to an input with this in it
 * @param {...string} args
 */
export async function startScripted(rules, ...args) {
  const dir = mkdtempSync(join(tmpdir(), "treadle-script-"));
  const write = (name, value) => writeFileSync(join(dir, name), JSON.stringify(value)); // which is YAML, too
  write("script.yaml", { rules: Object.entries(rules).map(([match, answers]) => ({ match, answers })) });
  write("treadle.yaml", { models: [{ name: "script", provider: "scripted", file: "script.yaml" }] });
  const server = await startServer("--config", join(dir, "treadle.yaml"), ...args);
  return Object.assign(server, { forget: () => rmSync(dir, { recursive: true, force: true }) });
}

/** Serves pages of an origin that is not the server's. */
export class Site {
  /** What is served, by path: HTML, or a script if the path says so. @type {Map<string, string>} */
  pages = new Map([["/", "<!doctype html><title>A page</title>"]]);
  #http = createServer((request, response) => {
    const body = this.pages.get(request.url.split("?")[0]);
    const type = /\.js$/.test(request.url) ? "text/javascript" : "text/html";
    response.writeHead(body === undefined ? 404 : 200, { "Content-Type": `${type}; charset=utf-8`, "Cache-Control": "no-store" });
    response.end(body);
  });
  url = "";

  async start() {
    await new Promise((resolve) => this.#http.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.#http.address().port}`;
    return this;
  }
  stop() {
    this.#http.closeAllConnections();
    this.#http.close();
  }
}

/** Chromium. Each context is a person of their own, and whatever goes wrong in any page is noted until a test looks. */
export class Browser {
  #browser;
  #contexts = [];
  /** Uncaught errors and console errors; and answers that are no success, which some tests provoke. */
  faults = [];
  refused = [];

  async start() {
    this.#browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: FLAGS, timeout: PATIENCE });
    return this;
  }
  stop() {
    return this.#browser?.close();
  }
  /** @param {import("playwright-core").BrowserContextOptions} [options] */
  async person(options) {
    const context = await this.#browser.newContext({ reducedMotion: "reduce", ...options });
    context.setDefaultTimeout(PATIENCE);
    this.#contexts.push(context);
    await context.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (e) => console.error(`policy violated: ${e.violatedDirective} by ${e.blockedURI}`));
    });
    context.on("weberror", (e) => this.faults.push(e.error().stack ?? String(e.error())));
    context.on("console", (message) => {
      if (message.type() !== "error") return;
      (message.text().startsWith("Failed to load resource") ? this.refused : this.faults).push(`${message.text()} (${message.location().url})`);
    });
    return context;
  }
  /** Ends a test: closes its pages, which must have had no faults. */
  async done() {
    const contexts = this.#contexts.splice(0);
    await Promise.all(contexts.map((context) => context.close()));
    const faults = this.faults.splice(0);
    this.refused.length = 0;
    assert.deepEqual(faults, []);
  }
}

/** The demo page as somebody uses it. */
export class Demo {
  /** @param {import("playwright-core").Page} page */
  constructor(page) {
    this.page = page;
  }
  /** @param {import("playwright-core").BrowserContext} person @param {string} url of the server, or of a demo page */
  static async open(person, url) {
    const demo = new Demo(await person.newPage());
    await demo.page.goto(new URL("/demo/", url).href + new URL(url).hash);
    await demo.live();
    return demo;
  }
  get session() {
    return new URLSearchParams(new URL(this.page.url()).hash.slice(1)).get("session");
  }
  live() {
    return this.page.waitForSelector("#connection[data-state=open]");
  }
  /** @param {string} status */
  status(status) {
    return this.page.waitForSelector(`#status[data-status=${status}]`);
  }
  /** Sends a text. @param {string} text */
  async say(text) {
    await this.page.waitForSelector("#status[data-status=idle]");
    await this.page.fill("#composer-input", text);
    await this.page.press("#composer-input", "Enter");
  }
  /** Waits until the nth turn has ended, and nothing runs any more. @param {number} n @param {string} [outcome] */
  async ended(n, outcome = "completed") {
    await this.page.waitForSelector(`.activity-turn:nth-of-type(${n})[data-outcome]:not([data-outcome=running])`, { state: "attached" });
    assert.equal(await this.page.getAttribute(`.activity-turn:nth-of-type(${n})`, "data-outcome"), outcome);
    await this.status("idle");
  }
  /** Waits for the agent's question. */
  asked() {
    return this.page.waitForSelector("dialog#ask[open]");
  }
  notAsked() {
    return this.page.waitForSelector("dialog#ask:not([open])", { state: "attached" });
  }
  /** @param {string} selector */
  count(selector) {
    return this.page.locator(selector).count();
  }
  /** What the agent said in the nth turn, without what shows its calls. @param {number} n */
  replies(n) {
    return this.page.locator(`.turn:nth-of-type(${n}) .reply`).allTextContents();
  }
  /** Does the page fit into its window? */
  async fits() {
    const [needs, has] = await this.page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(needs <= has, `the page is ${needs} px wide in a window of ${has}`);
  }
}

/** What the server says of a session. @param {string} server its address @param {string} id */
export async function ask(server, id, path = "", headers = {}) {
  const response = await fetch(`${server}/v1/sessions/${id}${path}`, { headers });
  assert.ok(response.ok, `${path}: ${response.status}`);
  return response.json();
}

/** The events of a session, of one type if given. @param {string} server @param {string} id @param {string} [type] */
export async function eventsOf(server, id, type) {
  const events = [];
  for (let after = "", more = true; more; ) {
    const page = await ask(server, id, `/events?limit=200&after=${encodeURIComponent(after)}`, { Accept: "application/json" });
    events.push(...page.events.map(({ event }) => event));
    ({ more, cursor: after } = page);
  }
  return type ? events.filter((event) => event.type === type) : events;
}
