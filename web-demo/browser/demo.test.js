// The demo page, used as people use it.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, it } from "node:test";
import { Browser, Demo, eventsOf, startScripted, startServer, until } from "./harness.js";

const HTML = '<img src=x onerror="document.title=1"><script>document.title=2</script> <b>bold</b>';
const CHIPS = [
  "Add a red circle", "Set the counter to 7", "Make the selected text upper case", "Ask me for my favourite colour and add a square in it",
  "Add two blue triangles; then tidy up the board", "Do the thing that fails",
];

let server, scripted;
const browser = new Browser();
before(async () => {
  [server, scripted] = await Promise.all([startServer(), startScripted({ html: [[{ text: HTML }]] }), browser.start()]);
});
after(() => Promise.all([browser.stop(), server?.stop(), scripted?.stop(), scripted?.forget()]));
afterEach(() => browser.done());

const open = async (options) => Demo.open(await browser.person(options), server.url);

describe("the demo page", () => {
  it("has chips that do what they say, and shows each call", async () => {
    const demo = await open();
    const { page } = demo;
    assert.deepEqual(await page.locator("#chips button").allTextContents(), CHIPS);
    for (const [i, chip] of CHIPS.entries()) {
      await page.click(`#chips button:text-is("${chip}")`);
      if (chip.startsWith("Ask me")) {
        await demo.asked();
        assert.equal(await page.textContent("#status-text"), "Waiting for you");
        await page.check("#ask-field input[value=teal]");
        await page.click("#ask-answer");
      }
      await demo.ended(i + 1);
    }
    for (const shape of [".red circle", ".teal rect:not(.shape-ring)", ".blue path"]) assert.ok(await demo.count(`.shape${shape}`), shape);
    assert.equal(await demo.count(".shape"), 4);
    assert.equal(await page.textContent("#counter"), "7");
    assert.match(await page.inputValue("#note"), /^The TREADLE LIFTS THE THREADS, and/);
    assert.equal(await demo.count(".turn"), CHIPS.length);
    assert.equal(await demo.count(".call[data-state=done]"), 6);
    assert.match(await page.textContent(".call[data-state=failed]"), /This tool fails every time, on purpose/);
    assert.match((await demo.replies(6)).join(), /ALWAYS_FAILS/);

    await page.click(".turn:nth-of-type(2) .call");
    const details = page.locator(".activity details[open]");
    assert.match(await details.textContent(), /set_counter.*Arguments.*"value": 7.*Result.*"before": 0.*Settled bypage/s);
    const results = await eventsOf(server.url, demo.session, "tool_result");
    assert.ok(results.every((result) => result.settled_by === "page"));
    assert.deepEqual(browser.refused, [], "no request was refused");
  });

  it("asks again after a reload, keeps the draft, and answers once", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say("Add a red circle");
    await demo.ended(1);
    await demo.say('ask me "What is your name?"');
    await demo.asked();
    await page.fill("#ask-input", "Ad");
    for (let i = 0; i < 2; i++) {
      await page.reload();
      await demo.asked();
      assert.equal(await page.inputValue("#ask-input"), "Ad");
    }
    assert.equal(await page.textContent("#status-text"), "Waiting for you");
    await page.fill("#ask-input", "Ada");
    await page.press("#ask-input", "Enter");
    await demo.ended(2);
    await demo.notAsked();
    assert.deepEqual(await demo.replies(2), ["Calling ask_user.", 'ask_user returned {"answer":"Ada"}.']);
    await page.reload();
    await demo.ended(2);
    assert.equal(await demo.count(".shape"), 1, "the circle was not added again");
    assert.equal(await demo.count("dialog[open]"), 0);
    const [, answer, ...more] = await eventsOf(server.url, demo.session, "tool_result");
    assert.deepEqual([answer.result.output, answer.settled_by, more.length], [{ answer: "Ada" }, "page", 0]);
  });

  it("closes the question when the turn is canceled, and goes on", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say('ask me "What is your name?"');
    await demo.asked();
    await page.click("#ask-stop");
    await demo.ended(1, "canceled");
    await demo.notAsked();
    await page.waitForSelector(".call[data-state=stopped]");

    await demo.say('ask me "And now?"');
    await demo.asked();
    const [turn] = (await eventsOf(server.url, demo.session, "turn_started")).slice(-1);
    await fetch(`${server.url}/v1/sessions/${demo.session}/turns/${turn.turn_id}/cancel`, { method: "POST" });
    await demo.ended(2, "canceled");
    await demo.notAsked();
    await demo.say("Set the counter to 3");
    await demo.ended(3);
    assert.equal(await page.textContent("#counter"), "3");
    const settled = await eventsOf(server.url, demo.session, "tool_result");
    assert.deepEqual(settled.map((e) => e.settled_by), ["cancel", "cancel", "page"]);
  });

  it("works with the keyboard alone", async () => {
    const demo = await open();
    const { page } = demo;
    const { keyboard } = page;
    const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.tagName);
    await until(async () => (await focused()) === "composer-input", "the focus in the composer");
    await keyboard.type("Ask me for my favourite colour and add a square in it");
    await keyboard.press("Enter");
    await demo.asked();
    await until(() => page.evaluate(() => document.activeElement.name === "ask-choice"), "the focus in the question");
    await keyboard.press("ArrowRight");
    await keyboard.press("ArrowRight");
    await keyboard.press("Enter");
    await demo.ended(1);
    assert.equal(await demo.count(".shape.yellow"), 1);
    await until(async () => (await focused()) === "composer-input", "the focus back in the composer");

    await keyboard.type("ask me");
    await keyboard.press("Shift+Enter");
    await keyboard.type('"Which?"');
    await keyboard.press("Enter");
    await demo.asked();
    await keyboard.press("Escape");
    await demo.ended(2);
    assert.match(await page.textContent(".turn:nth-of-type(2) .call"), /You declined/);

    // From the top of the page, Tab comes to everything that can be used.
    await page.focus(".skip");
    const order = [];
    for (let i = 0; i < 60 && order.at(-1) !== "calls-only"; i++) {
      await keyboard.press("Tab");
      order.push(await focused());
      if (/^yellow square/.test(order.at(-1))) {
        await keyboard.press("ArrowLeft");
        assert.notEqual(await focused(), order.at(-1), "an arrow moves the shape");
        await keyboard.press("Delete");
        assert.equal(await demo.count(".shape"), 0);
      }
    }
    for (const stop of ["new-session", "Add a circle", "counter-more", "note", "messages", "composer-input", "calls-only"]) {
      assert.ok(order.includes(stop), `${stop} is not among ${order.join(" | ")}`);
    }
    const address = page.url();
    await page.focus(".skip");
    await keyboard.press("Enter");
    assert.deepEqual([await focused(), page.url()], ["composer-input", address]);
    await page.locator(".call").first().focus();
    await keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.closest("details[open]")?.querySelector(".call-name").textContent), "add_shape");
  });

  for (const [width, height] of [[390, 844], [320, 568]]) {
    it(`fits into ${width} pixels`, async () => {
      const demo = await open({ viewport: { width, height }, hasTouch: true });
      const { page } = demo;
      await demo.fits();
      await demo.say("Add two blue triangles; then tidy up the board");
      await demo.ended(1);
      await demo.fits();
      await demo.say(`ask me "${"Averylongwordwithoutanyplacetobreakit".repeat(4)}"`);
      await demo.asked();
      await demo.fits();
      const box = await page.locator("#ask").boundingBox();
      assert.ok(box.x >= 0 && box.x + box.width <= width && box.y + box.height <= height, `the question is at ${JSON.stringify(box)}`);
      await page.fill("#ask-input", "x".repeat(300));
      await page.click("#ask-answer");
      await demo.ended(2);
      await demo.fits();
      for (const view of ["note", "activity"]) {
        await page.click(`[data-show=${view}]`);
        await demo.fits();
      }
      for (const summary of await page.locator(".activity summary").all()) await summary.click();
      await demo.fits();
    });
  }

  it("shows what a model says as text", async () => {
    const demo = await Demo.open(await browser.person(), scripted.url);
    const { page } = demo;
    await demo.say("html");
    await demo.ended(1);
    assert.deepEqual(await demo.replies(1), [HTML]);
    assert.equal(await demo.count(".reply img, .reply b, .reply script, .activity img"), 0);
    assert.equal(await page.title(), "Treadle demo");

    const real = await open();
    await real.say(`ask me "<img src=x onerror=alert(1)> <b>you</b>?"`);
    await real.asked();
    assert.match(await real.page.textContent("#ask-question"), /<img src=x onerror=alert\(1\)> <b>you<\/b>\?/);
    assert.equal(await real.count("#ask img, #ask b, .call img"), 0);
    await real.page.fill("#ask-input", "<i>me</i>");
    await real.page.press("#ask-input", "Enter");
    await real.ended(1);
    assert.match((await real.replies(1)).join(), /<i>me<\/i>/);
    assert.equal(await real.count("#turns i, .activity i"), 0);
  });

  it("is served with strict headers, which hold", async () => {
    const demo = await open();
    for (const path of ["/demo/", "/demo/app.js", "/demo/style.css"]) {
      const { status, headers } = await fetch(server.url + path);
      assert.equal(status, 200);
      const policy = headers.get("content-security-policy");
      for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"]) {
        assert.ok(policy.split("; ").includes(part), `${path}: ${part} is not in ${policy}`);
      }
      assert.doesNotMatch(policy, /unsafe|\*|https?:/);
      assert.equal(headers.get("x-content-type-options"), "nosniff", path);
      assert.equal(headers.get("cross-origin-opener-policy"), "same-origin", path);
      assert.ok(headers.get("referrer-policy"), path);
    }
    // What the tests look for when they look for violations is there to be found.
    await demo.page.evaluate(() => {
      document.body.append(Object.assign(document.createElement("script"), { textContent: "document.title = 'broken'" }));
    });
    const violated = await until(() => browser.faults.find((fault) => fault.startsWith("policy violated: script-src")), "a violation");
    assert.ok(violated);
    assert.equal(await demo.page.title(), "Treadle demo");
    browser.faults.length = 0;
  });

  it("begins anew, and comes back to an older session by its address", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say("Add a red circle");
    await demo.ended(1);
    const [first, address] = [demo.session, page.url()];
    await page.click("#new-session");
    await until(() => demo.session !== first, "another session");
    await demo.live();
    assert.ok(await page.isVisible("#welcome"));
    await demo.say("Set the counter to 5");
    await demo.ended(1);
    // What the first session had left for later, such as showing a claim, has had its time when a timer of now has.
    await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 800)));
    assert.deepEqual([await demo.count(".shape"), await demo.count(".turn"), await demo.count(".activity-turn")], [0, 1, 1]);
    await page.evaluate((url) => location.assign(url), address);
    await page.waitForSelector(".shape");
    await demo.ended(1);
    assert.equal(await page.textContent("#counter"), "0");
    assert.equal(demo.session, first);
  });

  it("says what is wrong with a session that is gone or ended", async () => {
    const demo = await open();
    const { page } = demo;
    await demo.say("Add a red circle");
    await demo.ended(1);
    const address = page.url();
    await fetch(`${server.url}/v1/sessions/${demo.session}/end`, { method: "POST" });
    await demo.status("ended");
    assert.match(await page.textContent("#notice"), /This session has ended/);
    await fetch(`${server.url}/v1/sessions/${demo.session}`, { method: "DELETE" });
    await page.goto("about:blank");
    await page.goto(address);
    await page.waitForSelector('#notice:not([hidden]) >> text="This session no longer exists. Start a new one to go on."');
    await page.click("#notice button");
    await demo.live();
    assert.equal(await demo.count(".shape"), 0);
  });
});
