// The parts of client.js that need no server: the stream parser, the JSON that results become, the checks of what authors write.
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { defineTool, encodeJSON, EventStreamParser, Treadle, TreadleError } from "../client.js";

const bytes = (text) => new TextEncoder().encode(text);
function parse(chunks) {
  const out = [];
  const parser = new EventStreamParser(({ id, type, data }) => out.push([id, type, data]), (ms) => out.push(ms));
  for (const chunk of chunks) parser.push(chunk);
  return out;
}

describe("EventStreamParser", () => {
  const table = {
    "an event": ["id: 1\nevent: a\ndata: x\n\n", [["1", "a", "x"]]],
    "CRLF": ["id: 1\r\nevent: a\r\ndata: x\r\n\r\n", [["1", "a", "x"]]],
    "CR": ["id: 1\revent: a\rdata: x\r\r", [["1", "a", "x"]]],
    "mixed line ends": ["event: a\rdata: x\r\ndata: y\n\rdata: z\n\n", [["", "a", "x\ny"], ["", "message", "z"]]],
    "a byte order mark, once": ["\ufeffdata: x\n\n\ufeffdata: y\n\n", [["", "message", "x"]]],
    "comments": [": hi\n:\ndata: x\n:data: y\n\n", [["", "message", "x"]]],
    "several lines of data": ["data: x\ndata\ndata: y\n\n", [["", "message", "x\n\ny"]]],
    "one space is taken off": ["data:x\n\ndata:  x\n\ndata:\tx\n\n", [["", "message", "x"], ["", "message", " x"], ["", "message", "\tx"]]],
    "an empty event is none, but its id counts": ["id: 1\nevent: a\n\ndata: x\n\n", [["1", "message", "x"]]],
    "data that is empty twice": ["data\n\ndata\ndata\n\n", [["", "message", ""], ["", "message", "\n"]]],
    "the id stays": ["id: 1\ndata: x\n\ndata: y\n\nid\ndata: z\n\n", [["1", "message", "x"], ["1", "message", "y"], ["", "message", "z"]]],
    "an id with NUL is none": ["id: 1\ndata: x\n\nid: 2\0\ndata: y\n\n", [["1", "message", "x"], ["1", "message", "y"]]],
    "retry of digits": ["retry: 2000\nretry: 1x\nretry: -1\nretry:\n\n", [2000]],
    "unknown fields": ["foo: 1\n data: y\nData: z\ndata: x\n\n", [["", "message", "x"]]],
    "a colon in the value": ["data: a:b: c\n\n", [["", "message", "a:b: c"]]],
    "an event that is cut off": ["data: x\n\ndata: y\n", [["", "message", "x"]]],
    "text beyond ASCII": ["data: h\u00e9llo \u{1f600} \u4e16\n\n", [["", "message", "h\u00e9llo \u{1f600} \u4e16"]]],
    "other line separators are text": ["data: a\u2028b\u0085c\x0bd\n\n", [["", "message", "a\u2028b\u0085c\x0bd"]]],
  };
  for (const [name, [text, expected]] of Object.entries(table)) {
    it(name, () => {
      const all = bytes(text);
      assert.deepEqual(parse([all]), expected);
      assert.deepEqual(parse(Array.from(all, (b) => Uint8Array.of(b))), expected, "byte by byte");
      for (let cut = 0; cut <= all.length; cut++) assert.deepEqual(parse([all.subarray(0, cut), new Uint8Array(), all.subarray(cut)]), expected, `cut at ${cut}`);
    });
  }
  it("replaces what is not UTF-8", () => assert.deepEqual(parse([Uint8Array.of(...bytes("data: "), 0xff, 0xc3), bytes("\n\n")]), [["", "message", "\ufffd\ufffd"]]));
  it("bounds what it keeps", () => {
    const big = new Uint8Array(1 << 20).fill(97);
    const parser = new EventStreamParser(() => {});
    assert.throws(() => {
      for (let i = 0; i < 40; i++) parser.push(big);
    }, { code: "PROTOCOL_ERROR" });
  });
});

describe("encodeJSON", () => {
  class Point {
    x = 1;
  }
  class Money {
    toJSON = () => ({ cents: 5 });
  }
  class Odd {
    toJSON() {
      return this;
    }
  }
  const node = Object.create({ nodeType: 1, nodeName: "DIV" });
  const cycle = { items: [{}] };
  cycle.items[0].parent = cycle;
  const shared = { a: 1 };
  let deep = 1;
  for (let i = 0; i < 200; i++) deep = [deep];
  const bare = Object.assign(Object.create(null), { a: 1 });
  const hostile = { get a() { throw new Error("no"); } };

  const good = [
    [null, "null"], [true, "true"], [0, "0"], [-0, "0"], [1.5e300, "1.5e+300"], ["", '""'], ['"\n\u2028', '"\\"\\n\u2028"'],
    [[], "[]"], [{}, "{}"], [[1, [2]], "[1,[2]]"], [{ a: { "b c": 1 } }, '{"a":{"b c":1}}'], [{ a: undefined, b: 1 }, '{"b":1}'],
    [{ a: shared, b: shared }, '{"a":{"a":1},"b":{"a":1}}'], [bare, '{"a":1}'], [JSON.parse('{"__proto__":{"x":1}}'), '{"__proto__":{"x":1}}'],
    [new Date(0), '"1970-01-01T00:00:00.000Z"'], [new URL("http://a/b"), '"http://a/b"'], [{ price: new Money() }, '{"price":{"cents":5}}'],
    ["a\ud83d", '"a\ufffd"'], [{ "\udc00": "\ud83d\ude00" }, '{"\ufffd":"\u{1f600}"}'], [deep, "[".repeat(200) + 1 + "]".repeat(200)],
    [{ [Symbol("s")]: 1 }, "{}"],
  ];
  for (const [value, expected] of good) {
    it(`writes ${expected.slice(0, 40)}`, () => {
      assert.equal(encodeJSON(value), expected);
      JSON.parse(expected);
    });
  }
  const bad = [
    [undefined, "$: undefined is not JSON; use null"], [{ a: [undefined] }, "$.a[0]: undefined is not JSON"], [[, 1], "$[0]: undefined"],
    [NaN, "$: NaN is not JSON"], [{ a: -Infinity }, "$.a: -Infinity is not JSON"], [1n, "$: a BigInt is not JSON"],
    [{ "a b": () => {} }, '$["a b"]: a function is not JSON'], [[Symbol("s")], "$[0]: a symbol is not JSON"],
    [cycle, "$.items[0].parent: a cycle is not JSON"], [[deep], `nested deeper than 200 levels`],
    [{ items: [1, 2, 3, { node }] }, "$.items[3].node: a DOM node is not JSON"], [new Map(), "a Map is not JSON; use Object.fromEntries"],
    [new Set(), "a Set is not JSON"], [Promise.resolve(), "a Promise is not JSON; await it"], [new Error("x"), "an Error is not JSON"],
    [new Point(), "an instance of Point is not JSON"], [new Uint8Array(1), "an instance of Uint8Array"], [Object("boxed"), "an instance of String"],
    [new Odd(), "an instance of Odd"], [new Date(NaN), "an invalid Date"], [hostile, "reading it threw: no"], [/x/, "an instance of RegExp"],
  ];
  for (const [value, expected] of bad) {
    it(`refuses ${expected}`, () => assert.throws(() => encodeJSON(value), (e) => e.code === "TOOL_RESULT_NOT_JSON" && assert.ok(e.message.includes(expected), e.message) === undefined));
  }
  it("bounds the work of values that repeat themselves", () => {
    let value = [];
    for (let i = 0; i < 60; i++) value = [value, value];
    assert.throws(() => encodeJSON(value, 1000), { code: "TOOL_RESULT_TOO_LARGE" });
  });
});

describe("what an author writes", () => {
  const baseUrl = "http://127.0.0.1:9";
  const tool = { name: "a", description: "b" };
  const faults = {
    "a relative base URL": [() => new Treadle({ baseUrl: "agent" }), /"agent" must be the server's http\(s\) address/],
    "a base URL without scheme": [() => new Treadle({ baseUrl: "localhost:8080" }), /http\(s\) address/],
    "a base URL with a query": [() => new Treadle({ baseUrl: "http://a?b" }), /http\(s\) address/],
    "a base URL that is none": [() => new Treadle({ baseUrl: null }), /null must be/],
    "no base URL where the module is a file": [() => new Treadle(), /baseUrl/],
    "an unknown option": [() => new Treadle({ baseUrl, key: "x" }), /knows no "key"; it takes baseUrl, token/],
    "a token of another kind": [() => new Treadle({ baseUrl, token: 1 }), /token/],
    "a client id that is empty": [() => new Treadle({ baseUrl, clientId: "" }), /clientId/],
    "a lease that is too short": [() => new Treadle({ baseUrl, leaseMs: 1 }), /leaseMs/],
    "a lease with a fraction": [() => new Treadle({ baseUrl, leaseMs: 1500.5 }), /whole number/],
    "a token with a line break": [() => new Treadle({ baseUrl, token: "a\nb" }), /visible ASCII/],
    "an idempotency key of other letters": [() => new Treadle({ baseUrl }).createSession({ idempotencyKey: "ü€" }), /visible ASCII/],
    "a tool without name": [() => defineTool({ description: "b" }), /the name undefined must be/],
    "a tool with a bad name": [() => defineTool({ ...tool, name: "set due date" }), /"set due date" must be/],
    "a tool with a long name": [() => defineTool({ ...tool, name: "a".repeat(65) }), /1 to 64/],
    "a tool without description": [() => defineTool({ name: "a" }), /a needs a description/],
    "a tool with the wire's names": [() => defineTool({ ...tool, args_schema: {} }), /knows no "args_schema"/],
    "a schema that is no object": [() => defineTool({ ...tool, argsSchema: [] }), /argsSchema of a/],
    "a timeout of seconds": [() => defineTool({ ...tool, timeoutMs: 0.5 }), /timeoutMs of a must be a positive integer/],
    "a handler that is no function": [() => defineTool({ ...tool, handler: "x" }), /handler of a/],
    "tools that are no array": [() => new Treadle({ baseUrl }).createSession({ skills: { tools: tool } }), /tools must be an array/],
    "tools beside skills": [() => new Treadle({ baseUrl }).createSession({ tools: [] }), /knows no "tools"; it takes model, skills/],
    "options that are an array": [() => new Treadle({ baseUrl }).createSession([tool]), /takes an object/],
    "a tool that is declared twice": [() => new Treadle({ baseUrl }).createSession({ skills: { tools: [tool, tool] } }), /a is declared twice/],
    "a schema that is not JSON": [() => new Treadle({ baseUrl }).createSession({ skills: { tools: [{ ...tool, argsSchema: { default: 1n } }] } }), /\$\.skills\.tools\[0\]\.args_schema\.default: a BigInt/],
    "a session without id": [() => new Treadle({ baseUrl }).resumeSession(), /the id of a session/],
  };
  for (const [name, [act, message]] of Object.entries(faults)) {
    it(name, () => assert.rejects(async () => act(), (e) => e instanceof TreadleError && e.code === "INVALID_INPUT" && assert.match(e.message, message) === undefined));
  }
  it("is kept as it is", () => {
    const handler = () => {};
    const defined = defineTool({ ...tool, handler });
    assert.deepEqual({ ...defined }, { ...tool, handler });
    assert.ok(Object.isFrozen(defined));
    assert.deepEqual(defineTool(defined), defined);
  });
});
