// Pages of other origins: those that the documentation shows, as they stand there, and calls that nobody answers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, afterEach, before, describe, it } from "node:test";
import ts from "typescript";
import { ask, Browser, eventsOf, Site, startServer, until } from "./harness.js";

const read = (path) => readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
const guide = read("docs/browser.md");
const SERVER = "http://127.0.0.1:8080"; // in what the documentation shows

let server, site;
const browser = new Browser();
before(async () => {
  site = await new Site().start();
  [server] = await Promise.all([startServer("--allow-origin", site.url), browser.start()]);
});
after(() => Promise.all([browser.stop(), server?.stop(), site?.stop()]));
afterEach(() => browser.done());

/** Serves what the documentation shows, with the server of the test. */
function serve(path, text) {
  assert.ok(text.includes(SERVER), `${path} names ${SERVER}`);
  site.pages.set(path, text.replaceAll(SERVER, server.url));
}
async function open(path) {
  const page = await (await browser.person()).newPage();
  await page.goto(site.url + path);
  return page;
}
const outputs = async (session) => (await eventsOf(server.url, session, "tool_result")).map(({ result }) => result.output ?? result.error.code);
const restart = async (meanwhile) => {
  await server.kill();
  await meanwhile();
  await server.start();
};

describe("examples/eventsource.html", () => {
  const QUESTION = "#said form";
  let page;
  const say = async (text) => {
    await page.fill("#say input", text);
    await page.click("#say button");
    await page.waitForSelector(QUESTION);
    assert.equal(await page.textContent(`${QUESTION} label`), `${/"(.*)"/.exec(text)[1]} `);
  };
  const answer = async (text) => {
    await page.fill(`${QUESTION} input`, text);
    await page.click(`${QUESTION} button`);
    await page.waitForSelector(QUESTION, { state: "detached" });
  };
  const session = () => page.evaluate(() => sessionStorage.session.slice(1));
  const said = (text) => page.waitForSelector(`#said p:has-text(${JSON.stringify(text)})`);
  before(() => serve("/eventsource.html", read("docs/examples/eventsource.html")));

  it("has 40 lines at most", () => assert.ok(read("docs/examples/eventsource.html").trimEnd().split("\n").length <= 40));

  it("answers a call, also after a reload", async () => {
    page = await open("/eventsource.html");
    await say('ask me "What is your <b>name</b>?"');
    assert.equal(await page.locator("#said b").count(), 0);
    await answer("Ada");
    await said('ask_user returned "Ada".');
    await say('ask me "And now?"');
    await page.reload();
    await page.waitForSelector(QUESTION);
    assert.equal(await page.locator(QUESTION).count(), 1);
    await answer("Grace");
    await said('ask_user returned "Grace".');
    assert.deepEqual(await outputs(await session()), ["Ada", "Grace"]);
  });

  it("goes on when the server is killed, or ended gently, and started again", async () => {
    page = await open("/eventsource.html");
    await say('ask me "Who?"');
    await restart(() => answer("Ada")); // given while nobody is there to take it
    await said('ask_user returned "Ada".');
    await say('ask me "Who else?"');
    await server.kill("SIGTERM");
    await server.start();
    await answer("Grace");
    await said('ask_user returned "Grace".');
    assert.deepEqual(await outputs(await session()), ["Ada", "Grace"]);
    assert.equal(await page.locator("#said p").count(), 6, "nothing is shown twice");
  });

  it("runs a call in one of two pages, and takes the question back when it is answered elsewhere", async () => {
    page = await open("/eventsource.html");
    await say('ask me "Who?"');
    const other = await page.context().newPage();
    await other.addInitScript((id) => sessionStorage.setItem("session", id), `/${await session()}`);
    const refused = other.waitForResponse((response) => response.url().endsWith("/claim"));
    await other.goto(page.url());
    assert.equal((await refused).status(), 409);
    assert.equal(await other.locator(QUESTION).count(), 0);
    const { turn_id: turn } = (await eventsOf(server.url, await session(), "turn_started"))[0];
    await fetch(`${server.url}/v1/sessions/${await session()}/turns/${turn}/cancel`, { method: "POST" });
    await page.waitForSelector(QUESTION, { state: "detached" });
  });
});

/** The code block of the guide whose first line begins like this. */
function block(begin) {
  const found = [...guide.matchAll(/^```\w+\n([^]*?)^```$/gm)].map(([, text]) => text).find((text) => text.startsWith(begin));
  assert.ok(found, `docs/browser.md has a block that begins with ${begin}`);
  return found;
}

describe("docs/browser.md", () => {
  it("leads to a page that works, through a reload and a restart", async () => {
    serve("/shop.html", block("<!doctype html>"));
    const page = await open("/shop.html");
    const items = () => page.locator("#list li").allTextContents();
    const status = (text) => page.waitForSelector(`#status:text-is("${text}")`);
    await status("idle");
    await page.click("#say button"); // with the text that is there
    await page.waitForSelector('#chat p:has-text("add_item returned")');
    await status("idle");
    assert.deepEqual(await items(), ["bread"]);
    assert.equal(await page.locator("#chat p").count(), 3);

    await page.fill("#say input", "Clear the list");
    await page.press("#say input", "Enter");
    await page.waitForSelector("#sure[open]");
    await page.reload();
    await page.waitForSelector("#sure[open]");
    assert.equal(await page.textContent("#sure p"), "Remove everything?");
    assert.deepEqual(await items(), ["bread"]);
    await page.click("#sure button[value=no]");
    await page.waitForSelector('#chat p:has-text("clear_list failed with DECLINED")');
    await status("idle");

    await page.fill("#say input", "call clear_list {}");
    await page.press("#say input", "Enter");
    await page.waitForSelector("#sure[open]");
    await restart(async () => {});
    await page.click("#sure button[value=yes]");
    await page.waitForSelector('#chat p:has-text("clear_list returned")');
    assert.deepEqual(await items(), []);
    const session = await page.evaluate(() => sessionStorage.getItem("session"));
    assert.deepEqual(await outputs(session), [{ items: 1 }, "DECLINED", { items: 0 }]);

    await page.fill("#say input", "call clear_list {}");
    await page.press("#say input", "Enter");
    await page.waitForSelector("#sure[open]");
    const { turn_id: turn } = (await eventsOf(server.url, session, "turn_started")).at(-1);
    await fetch(`${server.url}/v1/sessions/${session}/turns/${turn}/cancel`, { method: "POST" });
    await page.waitForSelector("#sure:not([open])", { state: "attached" });
  });

  it("leads to a React component that works, in strict mode", async () => {
    for (const name of ["session.js", "useTreadle.js", "App.js"]) {
      const compiled = ts.transpileModule(block(`// ${name}`), { compilerOptions: { jsx: ts.JsxEmit.ReactJSX, target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ES2022 } });
      site.pages.set(`/${name}`, compiled.outputText.replaceAll(SERVER, server.url));
    }
    site.pages.set("/client.js", read("web-demo/client.js"));
    const imports = serveReact();
    site.pages.set("/react.html", `<!doctype html><div id="root"></div><script type="importmap">${JSON.stringify({ imports })}</script><script type="module">
      import { createElement, StrictMode } from "react";
      import { createRoot } from "react-dom/client";
      import { App } from "./App.js";
      createRoot(document.getElementById("root")).render(createElement(StrictMode, null, createElement(App)));
    </script>`);
    const page = await open("/react.html");
    const send = async (text) => {
      await page.waitForSelector("button:enabled");
      if (text) await page.fill("input", text);
      await page.click("button");
    };
    await send();
    await page.waitForSelector('li:text-is("bread")');
    await page.waitForSelector('p:has-text("add_item returned")');
    await send("call add_item {}");
    await page.waitForSelector('p:has-text("add_item failed with TOOL_ARGS_INVALID")');
    await send('call add_item {"item": "milk"}');
    await page.waitForSelector('li:text-is("milk")');
    assert.deepEqual(await page.locator("li").allTextContents(), ["bread", "milk"]);
    await page.waitForSelector("button:enabled");
    await page.reload();
    await page.waitForSelector("button:enabled");
    await page.waitForFunction(() => document.querySelectorAll("p").length === 9);
    const session = await page.evaluate(() => sessionStorage.getItem("session"));
    assert.deepEqual(await outputs(session), [{ added: "bread" }, "TOOL_ARGS_INVALID", { added: "milk" }]);
  });
});

/** Serves React's packages, which are CommonJS, as modules; returns the import map. */
function serveReact() {
  const require = createRequire(import.meta.url);
  const files = {
    react: ["react/cjs/react.development.js"],
    "react/jsx-runtime": ["react/cjs/react-jsx-runtime.development.js", "react"],
    scheduler: ["scheduler/cjs/scheduler.development.js"],
    "react-dom": ["react-dom/cjs/react-dom.development.js", "react"],
    "react-dom/client": ["react-dom/cjs/react-dom-client.development.js", "react", "react-dom", "scheduler"],
  };
  const imports = {};
  for (const [name, [file, ...needs]] of Object.entries(files)) {
    imports[name] = `/npm/${name}.js`;
    const names = Object.keys(require(name)).filter((key) => key !== "default");
    site.pages.set(imports[name], [
      ...needs.map((need, i) => `import m${i} from ${JSON.stringify(need)};`),
      `const known = { ${needs.map((need, i) => `${JSON.stringify(need)}: m${i}`).join(", ")} };`,
      'const module = { exports: {} }, process = { env: { NODE_ENV: "development" } };',
      "(function (exports, require) {", read(`web-demo/node_modules/${file}`), "})(module.exports, (name) => known[name]);",
      "export default module.exports;",
      `export const { ${names.join(", ")} } = module.exports;`,
    ].join("\n"));
  }
  return imports;
}

describe("a call that nobody answers", () => {
  /** A page with the SDK and tools that never return, which note how they end. */
  async function hanging(timeoutMs) {
    const page = await open("/");
    await page.evaluate(async ([url, timeoutMs]) => {
      const { defineTool, Treadle } = await import(`${url}/sdk/v1/client.js`);
      Object.assign(globalThis, { begun: 0, ends: [] });
      const handler = (_args, { signal }) => {
        begun++;
        signal.addEventListener("abort", () => ends.push(signal.reason.code));
        return new Promise(() => {});
      };
      const tools = [defineTool({ name: "hang", description: "Hangs.", timeoutMs, handler }), defineTool({ name: "add", description: "Adds.", handler: () => 1 })];
      globalThis.session = await new Treadle().createSession({ skills: { tools } });
      await new Promise((resolve) => session.onConnection((state) => state === "open" && resolve()));
    }, [server.url, timeoutMs]);
    return { page, id: await page.evaluate(() => session.id) };
  }

  it("times out, aborts its handler, and the turn goes on", async () => {
    const { page } = await hanging(1500);
    const turn = await page.evaluate(() => session.sendText("call hang {}\ncall add {}"));
    const [hung, added] = turn.toolResults;
    assert.deepEqual([hung.settledBy, hung.result.ok, hung.result.error.code, hung.result.error.details], ["timeout", false, "TOOL_TIMEOUT", { connected: true }]);
    assert.ok(hung.durationMs >= 1500 && hung.durationMs < 2500, `it took ${hung.durationMs} ms`);
    assert.deepEqual(added.result, { ok: true, output: 1 });
    assert.equal(turn.outcome, "completed");
    assert.match(turn.text, /hang failed with TOOL_TIMEOUT/);
    assert.deepEqual(await page.evaluate(() => ends), ["TOOL_TIMEOUT"]);
    const next = await page.evaluate(() => session.sendText("call add {}"));
    assert.equal(next.text, "add returned 1.");
  });

  it("aborts its handler when the turn is canceled and when the session ends (C45)", async () => {
    const { page } = await hanging(60_000);
    for (const [i, end] of ["cancel", "end"].entries()) {
      const refused = page.evaluate(() => session.sendText("call hang {}").catch((fault) => fault.code));
      await page.waitForFunction((i) => begun === i + 1, i);
      await page.evaluate((end) => session[end](), end);
      assert.equal(await refused, "TURN_CANCELED");
      if (end === "cancel") assert.equal(await page.evaluate(async () => (await session.sendText("call add {}")).text), "add returned 1.");
    }
    await page.waitForFunction(() => ends.length === 2);
    assert.deepEqual(await page.evaluate(() => ends), ["TOOL_CANCELED", "TOOL_CANCELED"]);
  });

  it("times out when the page has gone (C26)", async () => {
    const { page, id } = await hanging(3000);
    await page.evaluate(() => void session.sendText("call hang {}"));
    const [call] = await until(async () => {
      const calls = await eventsOf(server.url, id, "tool_claimed");
      return calls.length && calls;
    }, "a claim");
    await page.close();
    const turn = await ask(server.url, id, `/turns/${call.turn_id}?wait=30`);
    assert.equal(turn.outcome, "completed");
    const [{ result, settled_by: settledBy, duration_ms: took }] = await eventsOf(server.url, id, "tool_result");
    assert.deepEqual([settledBy, result.error.code, result.error.details], ["timeout", "TOOL_TIMEOUT", { connected: false }]);
    assert.ok(took >= 3000 && took < 5000, `it took ${took} ms`);
  });
});
