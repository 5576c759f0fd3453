// @ts-check
/**
 * Treadle in the page: sessions whose tools run here. One ES module for browsers and Node 20, without dependencies; client.d.ts
 * documents each name. The server decides everything; this module brings it what it needs and obeys. Its rules:
 *
 * Handlers. A call goes to the last handler of onTool(name, fn), else to the tool's own, else to the last of onTool(fn), else it is
 * answered with TOOL_HANDLER_NOT_FOUND. What a handler returns is the output (undefined is null), but {error: {code, message,
 * details?, retryable?}} and nothing beside it is an error; a throw is TOOL_HANDLER_ERROR with the message alone. What is not JSON
 * becomes TOOL_RESULT_NOT_JSON with the path of the fault, see encodeJSON; what is too large TOOL_RESULT_TOO_LARGE.
 *
 * Once. A client claims a call before it runs it, so of two tabs one does. The claim is a lease that is renewed while the handler
 * runs: 15 s, 90 s in a hidden tab, whose timers browsers slow down, and 5 s more when the page goes. When it runs out the call is
 * offered again. Within one page a handler runs at most once for a call, however often that is offered: a result that could not be
 * given is kept for the next offer. Who claims first: the client that held the call before a reload, or that started the turn, at
 * once; another one after 0.1 s; a hidden tab after 0.5 s; a client without a handler for it after 2 s, to answer NOT_FOUND unless
 * somebody else took the call or a handler came meanwhile. An observer never claims.
 *
 * mayHaveRun is true when anybody may have begun this call before: an earlier offer, another client, or this tab before a reload.
 *
 * Identity. A tab keeps its client id in sessionStorage, so that after a reload it has its own calls back at once. A duplicated tab
 * copies sessionStorage; a Web Lock per id tells the two apart. Without Web Locks each page load is a new client.
 *
 * Stream. Events come by fetch and are resumed after the last one. 45 s without a byte, or 20 s when the tab becomes visible or the
 * network comes back, count as a dead connection. 4xx ends it (onError, connection "closed"); all else is tried again, after 0.5 to
 * 30 s. A page that goes into the back/forward cache lets go of its stream and lock and takes them up again when it comes back.
 *
 * Replay. History runs nothing: after it, the calls that are pending now are offered to the handlers.
 *
 * Requests that change something are repeated over network errors, 5xx and 429: for 30 s, a result until it counts or the call is
 * settled otherwise. Repeating is harmless, since starts carry an Idempotency-Key and the first result of a call wins.
 */

const LEASE = 15_000;
const HIDDEN_LEASE = 90_000; // hidden tabs may get one timer a minute
const LEAVING_LEASE = 5_000; // time enough for a reload
const SILENCE = 45_000; // three heartbeats
const STALE = 20_000;
const ANSWER_WITHIN = 20_000; // and 0.1 s for each kilobyte that is sent
const PATIENCE = 30_000;
const MAX_RESULT = 4 << 20;
const MAX_FRAME = 32 << 20;
const MAX_DEPTH = 200;

/** @typedef {import("./client.js").ToolDefinition<string, any>} Tool */
/** @typedef {import("./client.js").Treadle} PublicTreadle */
/** @typedef {import("./client.js").Session<any>} PublicSession */
/** @typedef {(args: any, ctx: import("./client.js").ToolContext) => unknown} Handler */
/** @typedef {{id: string, type: string, data: string}} Frame */
/** @typedef {{headers?: Record<string, string>, signal?: AbortSignal, keepalive?: boolean}} SendOptions */
/** @typedef {SendOptions & {body?: unknown, giveUp?: AbortSignal, patience?: number, hurry?: () => AbortSignal}} RequestOptions */

export class TreadleError extends Error {
  name = "TreadleError";
  /** @param {string} code @param {string} message @param {Record<string, unknown>} [details] @param {ErrorOptions} [options] */
  constructor(code, message, details = {}, options) {
    super(message, options);
    this.code = code;
    this.details = details;
  }
}

/** @param {string} message */
const invalid = (message) => new TreadleError("INVALID_INPUT", message);
/** Refuses what an author wrote. @param {unknown} ok @param {string} message with what to do */
function check(ok, message) {
  if (!ok) throw invalid(message);
}
const isObject = (v) => typeof v === "object" && v !== null && !Array.isArray(v);
const isTransient = (fault) => fault.code === "CONNECTION_FAILED" || [408, 429].includes(fault.details?.status) || fault.details?.status >= 500;
/** What there is to say of anything thrown. @returns {string} */
function messageOf(thrown) {
  try {
    return String(thrown?.message ?? thrown ?? "");
  } catch {
    return "";
  }
}
/** @param {number} failures @param {number} [base] */
const backoff = (failures, base = 500) => Math.min(30_000, base * 2 ** failures) * (0.5 + Math.random() / 2);
const isHidden = () => globalThis.document?.visibilityState === "hidden";
/** Hears an event of the page, if there is one. @param {string} type @param {AbortSignal | undefined} until @param {() => void} fn */
function onPage(type, until, fn) {
  const target = type === "visibilitychange" ? globalThis.document : globalThis;
  target?.addEventListener?.(type, fn, { signal: until });
}
const randomId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
/** The members of one object, named in JavaScript's way. @param {Record<string, any>} o @returns {any} */
const camel = (o) => Object.fromEntries(Object.entries(o).map(([k, v]) => [k.replace(/_([a-z])/g, (_, c) => c.toUpperCase()), v]));

/** Waits, or less if a signal ends it. @param {number} ms @param {...(AbortSignal | undefined)} signals @returns {Promise<void>} */
function sleep(ms, ...signals) {
  return new Promise((resolve) => {
    const timer = setTimeout(end, Math.min(ms, 0x7fffffff));
    function end() {
      clearTimeout(timer);
      for (const s of signals) s?.removeEventListener("abort", end);
      resolve();
    }
    for (const s of signals) s?.addEventListener("abort", end);
    if (signals.some((s) => s?.aborted)) end();
  });
}

/** @param {string} where @param {string[]} known */
function checkOptions(where, options, known) {
  check(isObject(options), `${where} takes an object with ${known.join(", ")}`);
  for (const key of Object.keys(options)) check(known.includes(key), `${where} knows no "${key}"; it takes ${known.join(", ")}`);
}

/** @param {string} where @param {unknown} key */
function checkKey(where, key) {
  check(typeof key === "string" && /^[!-~]{1,255}$/.test(key), `${where}: idempotencyKey must be 1 to 255 visible ASCII characters`);
}

export function defineTool(tool) {
  checkOptions("defineTool", tool, ["name", "description", "argsSchema", "timeoutMs", "maxTimeoutMs", "resultSchema", "handler"]);
  const { name, description, argsSchema, handler } = tool;
  const isName = typeof name === "string" && /^[a-zA-Z][a-zA-Z0-9_.-]{0,63}$/.test(name);
  check(isName, `defineTool: the name ${JSON.stringify(name)} must be 1 to 64 letters, digits, "_", "." or "-", beginning with a letter`);
  check(typeof description === "string" && description.trim(), `defineTool: ${name} needs a description that tells the model when to use it`);
  check(argsSchema === undefined || isObject(argsSchema), `defineTool: the argsSchema of ${name} must be a JSON Schema object; leave it out for a tool without parameters`);
  for (const key of ["timeoutMs", "maxTimeoutMs"]) {
    const isTime = tool[key] === undefined || (Number.isSafeInteger(tool[key]) && tool[key] > 0);
    check(isTime, `defineTool: ${key} of ${name} must be a positive integer, in milliseconds`);
  }
  check(["undefined", "function"].includes(typeof handler), `defineTool: the handler of ${name} must be a function`);
  return Object.freeze({ ...tool });
}

/** @param {unknown} tools @returns {Tool[]} */
function checkTools(tools) {
  if (!Array.isArray(tools)) throw invalid("tools must be an array of tools made by defineTool");
  const checked = tools.map(defineTool);
  const twice = checked.find((tool, i) => checked.findIndex((t) => t.name === tool.name) !== i);
  check(!twice, `the tool ${twice?.name} is declared twice; names are unique in a session`);
  return checked;
}

/** Tools as the server knows them. @param {Tool[]} tools */
const declarations = (tools) =>
  tools.map(({ name, description, argsSchema, timeoutMs, maxTimeoutMs, resultSchema }) => ({
    name, description, args_schema: argsSchema, timeout_ms: timeoutMs, max_timeout_ms: maxTimeoutMs, result_schema: resultSchema,
  }));

/**
 * Writes a value as JSON, or throws TOOL_RESULT_NOT_JSON with the path of what would be lost or changed on the way: functions,
 * symbols, BigInt, NaN and infinities, undefined in arrays, cycles, DOM nodes, Map, Set and all other class instances. As usual,
 * members that are undefined are left out and toJSON is asked (Date and URL become strings). Half surrogate pairs become U+FFFD.
 * @param {unknown} root @param {number} [limit] in characters @param {string} [at] the path of root
 */
export function encodeJSON(root, limit = Infinity, at = "$") {
  const parents = new Set();
  let size = 0;
  /** @param {string} path @param {string} what */
  const fault = (path, what) => new TreadleError("TOOL_RESULT_NOT_JSON", `${path}: ${what}`, { path });
  /** @param {string} text */
  const count = (text) => {
    size += text.length;
    if (size <= limit) return text;
    throw new TreadleError("TOOL_RESULT_TOO_LARGE", `the result has more than ${limit} characters of JSON; return less, or a part at a time`);
  };
  const quote = (/** @type {string} */ s) => count(JSON.stringify(s.replace(/\p{Cs}/gu, "\uFFFD")));
  /** @param {string} path @param {string} key @param {boolean} [asked] @returns {string} */
  const walk = (v, path, key, asked) => {
    switch (typeof v) {
      case "string": return quote(v);
      case "boolean": return count(String(v));
      case "number":
        if (!Number.isFinite(v)) throw fault(path, `${v} is not JSON; use null or a string`);
        return count(JSON.stringify(v));
      case "bigint": throw fault(path, "a BigInt is not JSON; use a string");
      case "undefined": throw fault(path, "undefined is not JSON; use null");
      case "object": break;
      default: throw fault(path, `a ${typeof v} is not JSON`);
    }
    if (v === null) return count("null");
    if (parents.has(v)) throw fault(path, "a cycle is not JSON");
    if (parents.size >= MAX_DEPTH) throw fault(path, `nested deeper than ${MAX_DEPTH} levels`);
    parents.add(v);
    const text = inner(v, path, key, asked);
    parents.delete(v);
    return text;
  };
  /** @param {string} path @param {string} key @param {boolean} [asked] */
  const inner = (v, path, key, asked) => {
    if (v instanceof Date && Number.isNaN(v.getTime())) throw fault(path, "an invalid Date is not JSON");
    if (!asked && typeof v.toJSON === "function") {
      parents.delete(v); // toJSON may return the object itself
      return walk(v.toJSON(key), path, key, true);
    }
    count("[]");
    if (Array.isArray(v)) return `[${Array.from(v, (item, i) => walk(item, `${path}[${i}]`, String(i))).join()}]`;
    const kind = instanceOf(v);
    if (kind) throw fault(path, kind);
    const members = [];
    for (const name of Object.keys(v)) {
      const value = v[name];
      if (value === undefined) continue;
      members.push(`${quote(name)}:${walk(value, /^[A-Za-z_$][\w$]*$/.test(name) ? `${path}.${name}` : `${path}[${JSON.stringify(name)}]`, name)}`);
    }
    return `{${members.join()}}`;
  };
  try {
    return walk(root, at, "");
  } catch (e) {
    throw e instanceof TreadleError ? e : fault(at, `reading it threw: ${messageOf(e)}`);
  }
}

/** Says what an object is if it is not plain; a plain one may be of another realm. */
function instanceOf(v) {
  const proto = Object.getPrototypeOf(v);
  if (proto === null || Object.getPrototypeOf(proto) === null) return "";
  if (typeof v.nodeType === "number" && typeof v.nodeName === "string") return "a DOM node is not JSON; return what you need of it";
  if (v instanceof Map) return "a Map is not JSON; use Object.fromEntries(map)";
  if (v instanceof Set) return "a Set is not JSON; use [...set]";
  if (v instanceof Promise) return "a Promise is not JSON; await it";
  if (v instanceof Error) return "an Error is not JSON; throw it, or return {error: {code, message}}";
  return `an instance of ${proto.constructor?.name || "a class"} is not JSON; return a plain object`;
}

/** The members of the body that answers a call with an error. @param {any} error */
function errorResult({ code, message, details, retryable }) {
  const error = { code: code.slice(0, 128), message: message.slice(0, 65_536), details, retryable: retryable === true || undefined };
  return `"error":${encodeJSON(error, MAX_RESULT, "$.error")}`;
}

/** The members of the body that answers a call whose handler returned this. */
function resultOf(value) {
  const error = value && typeof value === "object" && Object.keys(value).join() === "error" ? value.error : undefined;
  const isError = typeof error?.code === "string" && error.code && typeof error.message === "string" && error.message;
  return isError ? errorResult(error) : `"output":${value === undefined ? "null" : encodeJSON(value, MAX_RESULT)}`;
}

/** Reads an event stream as the WHATWG has it: feed it bytes as they come. */
export class EventStreamParser {
  #decoder = new TextDecoder();
  #line = "";
  #skipLF = false;
  #type = "";
  #data = "";
  #id = "";
  #onFrame;
  #onRetry;
  /** @param {(frame: Frame) => void} onFrame @param {(ms: number) => void} [onRetry] */
  constructor(onFrame, onRetry = () => {}) {
    this.#onFrame = onFrame;
    this.#onRetry = onRetry;
  }
  /** @param {Uint8Array} bytes */
  push(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return;
    let from = this.#skipLF && text[0] === "\n" ? 1 : 0;
    this.#skipLF = text.endsWith("\r");
    const end = /\r\n?|\n/g;
    end.lastIndex = from;
    for (let m; (m = end.exec(text)); from = end.lastIndex) {
      const line = this.#line + text.slice(from, m.index);
      this.#line = "";
      this.#take(line);
    }
    this.#line += text.slice(from);
    if (this.#line.length + this.#data.length <= MAX_FRAME) return;
    throw new TreadleError("PROTOCOL_ERROR", "an event is larger than any that the server sends");
  }
  /** @param {string} line */
  #take(line) {
    if (line === "") {
      const frame = { id: this.#id, type: this.#type || "message", data: this.#data.slice(0, -1) };
      const empty = this.#data === "";
      this.#type = this.#data = "";
      if (!empty) this.#onFrame(frame);
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "data") this.#data += value + "\n";
    else if (field === "event") this.#type = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.#onRetry(Number(value));
  }
}

/** @param {unknown} body JSON as it is, or a value */
function encodeBody(body) {
  try {
    return body === undefined || typeof body === "string" ? body : encodeJSON(body);
  } catch (e) {
    throw invalid(messageOf(e));
  }
}

/** What the sessions of one Treadle share: how to reach the server, and who this client is. */
class Client {
  /** @type {string} */
  #base;
  #options;
  /** @type {Promise<string> | undefined} */
  #id;
  #free = () => {};
  id = ""; // as far as it is known
  constructor(options) {
    checkOptions("new Treadle()", options, ["baseUrl", "token", "fetch", "clientId", "leaseMs"]);
    const { baseUrl = new URL("/", import.meta.url).href, token, fetch, clientId, leaseMs } = options;
    let url;
    try {
      url = new URL(typeof baseUrl === "string" ? baseUrl : "http:", globalThis.location?.href);
    } catch {
      // refused below, with what to do
    }
    if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash || url.username) {
      throw invalid(`new Treadle(): baseUrl ${JSON.stringify(baseUrl)} must be the server's http(s) address, such as "https://agent.example.com"`);
    }
    check(["undefined", "string", "function"].includes(typeof token), "new Treadle(): token must be a string, or a function that returns one");
    check(typeof token !== "string" || /^[!-~]+$/.test(token), "new Treadle(): token must be visible ASCII characters");
    check(["undefined", "function"].includes(typeof fetch), "new Treadle(): fetch must be a function like the global fetch");
    const isName = typeof clientId === "string" && clientId && clientId.length <= 128;
    check(clientId === undefined || isName, "new Treadle(): clientId must be a name of 1 to 128 characters");
    check(leaseMs === undefined || (Number.isSafeInteger(leaseMs) && leaseMs >= 1000 && leaseMs <= 300_000), "new Treadle(): leaseMs must be a whole number, 1000 to 300000");
    this.#base = url.href.replace(/\/+$/, "");
    this.#options = { token, clientId, fetch: fetch ?? globalThis.fetch.bind(globalThis) };
    this.lease = () => Math.max(leaseMs ?? LEASE, isHidden() ? HIDDEN_LEASE : 0);
    onPage("pagehide", undefined, () => {
      this.#id = undefined;
      this.#free();
    });
    this.identify();
  }

  /** @returns {Promise<string>} */
  identify() {
    this.#id ??= this.#chooseId().then((id) => (this.id = id));
    return this.#id;
  }
  async #chooseId() {
    if (this.#options.clientId) return this.#options.clientId;
    const fresh = this.id || randomId();
    try {
      if (!globalThis.document || !navigator.locks) return fresh;
      const key = `treadle:client:${this.#base}`;
      const stored = sessionStorage.getItem(key);
      if (stored && (await this.#hold(stored))) return stored;
      const id = stored === fresh ? randomId() : fresh;
      await this.#hold(id);
      sessionStorage.setItem(key, id);
      return id;
    } catch {
      return fresh; // a sandboxed frame has no storage
    }
  }
  /** Takes the lock of an id until the page goes; false if another tab has it. @param {string} id @returns {Promise<boolean>} */
  #hold(id) {
    const patience = new AbortController(); // the page before a reload may be about to let go
    sleep(300).then(() => patience.abort());
    return new Promise((resolve) => {
      const held = () => {
        resolve(true);
        return /** @type {Promise<void>} */ (new Promise((free) => (this.#free = free)));
      };
      navigator.locks.request(`treadle:${id}`, { signal: patience.signal }, held).catch(() => resolve(false));
    });
  }

  /**
   * One request, whatever its answer.
   * @param {string} method @param {string} path @param {SendOptions & {text?: string}} options @returns {Promise<Response>}
   */
  async send(method, path, { text, headers, signal, keepalive }) {
    const { token, fetch } = this.#options;
    const bearer = typeof token === "function" ? await (async () => token())().catch((e) => Promise.reject(new Error(`token() failed: ${messageOf(e)}`, { cause: e }))) : token;
    const type = text !== undefined && { "Content-Type": "application/json" };
    const auth = bearer && { Authorization: `Bearer ${bearer}` };
    return fetch(this.#base + path, { method, signal, keepalive, body: text, cache: "no-store", headers: { ...headers, ...type, ...auth } });
  }
  /** @param {Response} response @returns {Promise<TreadleError>} */
  async problem(response) {
    const body = await response.json().catch(() => ({}));
    const { type, title, code, detail, ...facts } = body ?? {};
    const { status } = response;
    const details = camel({ ...facts, status, retryAfter: Number(response.headers.get("retry-after")) || undefined });
    return new TreadleError(code ?? (status >= 500 ? "CONNECTION_FAILED" : "PROTOCOL_ERROR"), detail ?? `the server answered ${status}`, details);
  }
  /**
   * A request and its JSON, repeated for as long as patience: after a pause, which hurry may end.
   * @param {string} method @param {string} path @param {RequestOptions} [options]
   */
  async request(method, path, { body, headers, signal, giveUp, patience = PATIENCE, hurry, keepalive } = {}) {
    const text = encodeBody(body);
    const until = Date.now() + patience;
    for (let failures = 0; ; failures++) {
      const attempt = new AbortController();
      const stop = () => attempt.abort();
      const timer = setTimeout(() => attempt.abort(new Error("it took too long")), ANSWER_WITHIN + (text?.length ?? 0) / 10);
      signal?.addEventListener("abort", stop);
      let fault;
      try {
        const response = await this.send(method, path, { text, headers, keepalive, signal: attempt.signal });
        if (response.ok) return await response.json();
        fault = await this.problem(response);
      } catch (e) {
        fault = new TreadleError("CONNECTION_FAILED", `${this.#base} did not answer: ${messageOf(e)}`, {}, { cause: e });
      } finally {
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
      }
      if (signal?.aborted) throw signal.reason;
      if (!isTransient(fault) || Date.now() >= until) throw fault;
      await sleep(Math.max(backoff(failures), Number(fault.details.retryAfter ?? 0) * 1000), signal, giveUp, hurry?.());
      if (signal?.aborted) throw signal.reason;
      if (giveUp?.aborted) throw fault;
    }
  }
}

/** @implements {PublicTreadle} */
export class Treadle {
  #client;
  constructor(options = {}) {
    this.#client = new Client(options);
  }
  async createSession(options = {}) {
    checkOptions("createSession", options, ["model", "skills", "metadata", "idempotencyKey"]);
    const { model, skills = {}, metadata, idempotencyKey = randomId() } = options;
    checkKey("createSession", idempotencyKey);
    checkOptions("createSession: skills", skills, ["guidance", "tools"]);
    const tools = checkTools(skills.tools ?? []);
    const body = { model, metadata, skills: { guidance: skills.guidance, tools: declarations(tools) } };
    const state = await this.#client.request("POST", "/v1/sessions", { body, headers: { "Idempotency-Key": idempotencyKey } });
    return new Session(this.#client, state, tools, {});
  }
  /** @param {string} id */
  async resumeSession(id, options = {}) {
    check(typeof id === "string" && id, "resumeSession takes the id of a session, as in session.id");
    checkOptions("resumeSession", options, ["tools", "history", "observe"]);
    const tools = checkTools(options.tools ?? []);
    const state = await this.#client.request("GET", `/v1/sessions/${encodeURIComponent(id)}`);
    return new Session(this.#client, state, tools, options);
  }
}

/** A connection to a session's events that is always made again. What comes goes to its host. */
class Stream {
  #client;
  #path;
  #host;
  #cursor = "";
  #isSynced = false;
  #retry = 500;
  #heard = 0;
  #isAway = false;
  #link = new AbortController();
  #nap = new AbortController();
  /** Ends when nothing more is wanted. */
  #done;

  /** @param {Client} client @param {string} path @param {AbortSignal} done @param {Session} host */
  constructor(client, path, done, host) {
    this.#client = client;
    this.#path = path;
    this.#done = done;
    this.#host = host;
    done.addEventListener("abort", () => this.#link.abort());
    onPage("online", done, () => this.#revive());
    onPage("visibilitychange", done, () => isHidden() || this.#revive());
    onPage("pagehide", done, () => this.#leave());
    onPage("pageshow", done, () => this.#revive());
    this.#keepConnected();
  }

  async #keepConnected() {
    await sleep(0); // listeners that are added right after createSession or resumeSession miss nothing
    for (let failures = 0; !this.#done.aborted; failures++) {
      let retryAfter = 0;
      try {
        if (!this.#isSynced) this.#cursor = await this.#host.sync();
        this.#isSynced = true;
        if (!this.#done.aborted) await this.#read(() => (failures = 0));
      } catch (fault) {
        if (this.#done.aborted) return;
        if (fault.details?.status && !isTransient(fault)) return this.#host.fail(fault);
        if (fault.code === "PROTOCOL_ERROR") this.#host.emit("error", fault);
        retryAfter = 1000 * (fault.details?.retryAfter ?? 0);
      }
      if (this.#done.aborted) return;
      this.#host.connected("reconnecting");
      do {
        this.#nap = new AbortController();
        await sleep(this.#isAway ? Infinity : Math.max(retryAfter, backoff(failures, this.#retry)), this.#nap.signal, this.#done);
      } while (this.#isAway && !this.#done.aborted);
    }
  }
  #leave() {
    this.#isAway = true;
    this.#link.abort();
  }
  #revive() {
    this.#isAway = false;
    this.#nap.abort();
    if (Date.now() - this.#heard > STALE) this.#link.abort();
  }
  /** Reads events until the connection ends. @param {() => void} opened */
  async #read(opened) {
    const link = (this.#link = new AbortController());
    this.#heard = Date.now();
    const watchdog = setInterval(() => Date.now() - this.#heard > SILENCE && link.abort(), SILENCE / 9);
    try {
      const headers = { Accept: "text/event-stream", "Last-Event-ID": this.#cursor };
      const response = await this.#client.send("GET", `${this.#path}/events`, { headers, signal: link.signal });
      if (response.status === 204) return this.#host.finish(false);
      if (!response.ok) throw await this.#client.problem(response);
      const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
      if (!response.body || !isStream) throw new TreadleError("PROTOCOL_ERROR", "the answer is not an event stream");
      const parser = new EventStreamParser(
        (frame) => link.signal.aborted || this.#take(frame, opened),
        (ms) => (this.#retry = ms),
      );
      const reader = response.body.getReader();
      while (!link.signal.aborted) {
        const { done, value } = await reader.read();
        if (done) break;
        this.#heard = Date.now();
        parser.push(value);
      }
    } finally {
      clearInterval(watchdog);
      link.abort();
    }
  }
  /** @param {Frame} frame @param {() => void} opened */
  #take(frame, opened) {
    let event;
    try {
      event = JSON.parse(frame.data);
    } catch {
      throw new TreadleError("PROTOCOL_ERROR", "the server sent an event that is not JSON");
    }
    if (frame.type === "ready") {
      opened();
      this.#host.connected("open");
    } else if (frame.type === "reset") {
      this.#isSynced = false;
      this.#link.abort();
      this.#host.emit("event", event, { id: frame.id, replay: false });
    } else if (frame.type === "stream_end") {
      if (event.reason === "session_ended" || event.reason === "deleted") this.#host.finish(event.reason === "deleted");
    } else if (frame.type !== "heartbeat") {
      this.#cursor = frame.id;
      this.#host.apply(event, frame.id, false);
    }
  }
}

/** A call that is open. One loop serves it, from the first offer until its result counts or it is settled otherwise. */
class Call {
  /** The latest offer, as in the tool_call event. @type {any} */
  offer;
  /** Where the session stood when the call was offered last. */
  sync = 0;
  #offers = 0;
  #mayHaveRun = false;
  /** The client that was last seen to hold it. @type {string | undefined} */
  #holder;
  /** @type {string | undefined} */
  #claimId;
  #leaseEnds = 0;
  /** The members of the body that answers it. @type {string | undefined} */
  #result;
  #isServed = false;
  #isRunning = false;
  /** Progress that waits to be sent. @type {object | undefined} */
  #report;
  #isReporting = false;
  #nap = new AbortController();
  /** Ends when the call is settled. */
  #over = new AbortController();
  /** The handler's. */
  #stop = new AbortController();
  #session;
  #client;

  /** @param {Session} session @param {Client} client @param {string} id */
  constructor(session, client, id) {
    this.id = id;
    this.#session = session;
    this.#client = client;
  }
  /** @param {number} sync */
  offered(offer, sync) {
    Object.assign(this, { offer, sync });
    this.#mayHaveRun ||= offer.may_have_run;
    this.#holder = undefined;
    this.#offers++;
    this.renew(true); // if the handler runs, its lease ran out: go on holding the call
    this.wake();
  }
  /** Notes who holds the call. @param {string} holder @param {boolean} isReplay */
  held(holder, isReplay) {
    if (isReplay || holder !== this.#client.id) this.#mayHaveRun = true;
    this.#holder = holder;
    this.wake();
  }
  /** @param {TreadleError} reason */
  settled(reason) {
    this.#over.abort(reason);
    if (this.#isRunning) this.#stop.abort(reason);
  }
  /** Something changed: look again. */
  wake() {
    this.#nap.abort();
  }
  /** @param {number} ms */
  #pause(ms) {
    this.#nap = new AbortController();
    return sleep(ms, this.#nap.signal, this.#over.signal);
  }

  async serve() {
    if (this.#isServed) return;
    this.#isServed = true;
    const mine = await this.#client.identify(); // the same piece of the stream may settle the call meanwhile
    const isTaken = () => this.#holder !== undefined && this.#holder !== mine;
    while (!this.#over.signal.aborted) {
      const seen = this.#offers;
      const isFirst = this.#holder === mine || this.#session.started(this.offer.turn_id);
      if (this.#result === undefined && !this.#session.handlerOf(this.offer.tool)) await this.#pause(2000);
      else if (!isFirst && !isTaken()) await this.#pause(isHidden() ? 500 : 100);
      if (!isTaken() && (await this.#claim(Infinity))) {
        this.#result ??= await this.#run();
        if (await this.#submit()) return;
      }
      while (this.#offers === seen && !this.#over.signal.aborted) await this.#pause(Infinity);
    }
  }
  /** @param {string} verb @param {unknown} body @param {number} patience @param {boolean} [keepalive] */
  #post(verb, body, patience, keepalive) {
    return this.#session.request("POST", `/tool_calls/${this.id}/${verb}`, { body, patience, keepalive, signal: this.#over.signal });
  }
  /** Tells the page of a fault that neither the stream nor another try will mend. */
  #complain(fault) {
    const quiet = this.#over.signal.aborted || isTransient(fault) || [404, 409].includes(fault.details.status);
    if (!quiet) this.#session.emit("error", fault);
  }
  /** Claims the call, or renews the claim; false if another client has it. @param {number} patience */
  async #claim(patience) {
    const lease = this.#client.lease();
    try {
      const claim = await this.#post("claim", { client_id: await this.#client.identify(), lease_ms: lease }, patience);
      this.#claimId = claim.claim_id;
      if (!this.#isRunning) this.#mayHaveRun ||= claim.may_have_run;
      this.#leaseEnds = Date.now() + lease;
      return true;
    } catch (e) {
      this.#complain(e);
      return false;
    }
  }
  /** Prolongs the lease while the handler runs, if a third of it has passed. @param {boolean} [now] */
  renew(now) {
    if (this.#isRunning && (now || this.#leaseEnds - Date.now() < (this.#client.lease() * 2) / 3)) this.#claim(0);
  }
  /** The page goes, perhaps for good: who comes after it need not wait for long. */
  leave() {
    if (!this.#isRunning) return;
    this.#leaseEnds = Infinity; // no renewal until the page comes back
    this.#post("claim", { client_id: this.#client.id, lease_ms: LEAVING_LEASE }, 0, true).catch(() => {});
  }
  /** Runs the handler, which happens once, and returns what to answer. @returns {Promise<string>} */
  async #run() {
    const { tool, args } = this.offer;
    const handler = this.#session.handlerOf(tool);
    if (!handler) return errorResult({ code: "TOOL_HANDLER_NOT_FOUND", message: `The page has no handler for ${tool}.` });
    this.#isRunning = true;
    const renewal = setInterval(() => this.renew(), this.#client.lease() / 6);
    const over = new Promise((resolve) => this.#over.signal.addEventListener("abort", resolve));
    try {
      const value = await Promise.race([handler(structuredClone(args), this.#context()), over]);
      return this.#over.signal.aborted ? "" : resultOf(value);
    } catch (e) {
      if (e instanceof TreadleError && e.code.startsWith("TOOL_RESULT_")) return errorResult({ code: e.code, message: e.message });
      return errorResult({ code: "TOOL_HANDLER_ERROR", message: messageOf(e) || `The handler of ${tool} failed.` });
    } finally {
      clearInterval(renewal);
      this.#isRunning = false;
    }
  }
  #context() {
    const call = this;
    const { turn_id: turnId, tool, attempt } = this.offer;
    return {
      sessionId: this.#session.id, turnId, toolCallId: this.id, tool, attempt, mayHaveRun: this.#mayHaveRun, signal: this.#stop.signal,
      get deadline() {
        return new Date(call.offer.deadline);
      },
      /** @param {{message?: string, fraction?: number}} report */
      progress({ message, fraction } = {}) {
        if (fraction !== undefined && !(fraction >= 0 && fraction <= 1)) throw invalid("progress: fraction is the part that is done, 0 to 1");
        call.#report = { message, fraction };
        call.#sendProgress();
      },
    };
  }
  /** Sends the latest progress, at most four times a second. */
  async #sendProgress() {
    if (this.#isReporting) return;
    for (this.#isReporting = true; this.#report && this.#isRunning; ) {
      const body = { ...this.#report, claim_id: this.#claimId };
      this.#report = undefined;
      await this.#post("progress", body, 0).catch((e) => this.#complain(e));
      await sleep(250, this.#over.signal);
    }
    this.#isReporting = false;
  }
  /** Gives the result; false if it has to wait for the next offer, since another client holds the call. */
  async #submit() {
    for (let isRefused = false; !this.#over.signal.aborted; isRefused = true) {
      try {
        await this.#post("result", `{${this.#result},"claim_id":"${this.#claimId}"}`, Infinity);
        return true;
      } catch (e) {
        const { code, message, details } = e;
        if (code === "TOOL_CALL_CLAIMED") return false;
        this.#complain(e);
        if (isRefused || ![400, 413, 422].includes(details?.status)) return true;
        // What the page answered cannot be one, and the model has to know.
        const codes = { BODY_TOO_LARGE: "TOOL_RESULT_TOO_LARGE", TOOL_RESULT_INVALID: "TOOL_RESULT_INVALID" };
        this.#result = errorResult({ code: codes[/** @type {keyof codes} */ (code)] ?? "TOOL_HANDLER_ERROR", message });
      }
    }
    return true;
  }
}

/** @implements {PublicSession} */
class Session {
  #client;
  #path;
  #options;
  /** The state that came with the handle. */
  #given;
  /** @type {import("./client.js").SessionStatus} */
  #status;
  /** @type {import("./client.js").ConnectionState} */
  #connection = "connecting";
  /** @type {Map<string, Set<{fn: Function}>>} */
  #listeners = new Map();
  /** @type {Set<string>} */
  #declared = new Set();
  /** @type {Map<string, Handler>} */
  #inline = new Map();
  /** What onTool added, by name; "" for the fallback. @type {Map<string, {fn: Handler}[]>} */
  #handlers = new Map();
  /** Null once settled, so that none is ever run again. @type {Map<string, Call | null>} */
  #calls = new Map();
  /** What was said, by turn and step. @type {Map<string, import("./client.js").ChatMessage & {attempt: number}>} */
  #chat = new Map();
  #syncs = 0;
  /** The turn that runs. @type {string | undefined} */
  #turnId;
  /** Turns that this client started. @type {Set<string>} */
  #mine = new Set();
  /** @type {Promise<any> | undefined} */
  #starting;
  /** The last turns that ended. @type {Set<string>} */
  #ended = new Set();
  #turnEnds = new EventTarget();
  /** Aborted when the stream is open again: then what failed will work. */
  #hurry = new AbortController();
  #done = new AbortController();

  /** @param {Client} client @param {Tool[]} tools @param {{history?: boolean, observe?: boolean}} options */
  constructor(client, state, tools, options) {
    this.id = /** @type {string} */ (state.id);
    this.#path = `/v1/sessions/${this.id}`;
    this.#client = client;
    this.#given = state;
    this.#options = options;
    this.#status = state.status;
    this.#turnId = state.turn_id;
    this.#declare(tools, state.skills);
    onPage("visibilitychange", this.#done.signal, () => this.#eachCall((call) => call.renew()));
    onPage("pageshow", this.#done.signal, () => this.#eachCall((call) => call.renew(true)));
    onPage("pagehide", this.#done.signal, () => this.#eachCall((call) => call.leave()));
    new Stream(client, this.#path, this.#done.signal, this);
  }

  /** @param {string} text */
  async sendText(text, options = {}) {
    check(typeof text === "string" && text, "sendText takes what the user says, a string that is not empty");
    checkOptions("sendText", options, ["signal", "model", "maxSteps", "idempotencyKey"]);
    const { signal, model, maxSteps, idempotencyKey = randomId() } = options;
    check(signal === undefined || signal instanceof AbortSignal, "sendText: signal must be an AbortSignal, such as the signal of an AbortController");
    checkKey("sendText", idempotencyKey);
    if (signal?.aborted) throw new TreadleError("TURN_CANCELED", "the turn was canceled before it was sent", {}, { cause: signal.reason });
    if (this.#done.signal.aborted) throw this.#done.signal.reason;
    const starting = (this.#starting = this.request("POST", "/turns", {
      body: { input: text, model, max_steps: maxSteps }, headers: { "Idempotency-Key": idempotencyKey }, signal: this.#done.signal, giveUp: signal,
    }));
    const cancel = () => starting.then((turn) => this.#cancelTurn(turn.id)).catch(() => {}); // sendText itself tells of faults
    signal?.addEventListener("abort", cancel);
    try {
      return await this.#turnResult(await starting);
    } catch (e) {
      if (!signal?.aborted || e.code !== "CONNECTION_FAILED") throw e;
      throw new TreadleError("TURN_CANCELED", "the turn was canceled; whether the server had started it is not known", {}, { cause: e });
    } finally {
      signal?.removeEventListener("abort", cancel);
      if (this.#starting === starting) this.#starting = undefined;
    }
  }
  /** Waits for the end of a turn that was started. */
  async #turnResult(turn) {
    this.#starting = undefined;
    if (!turn.outcome && !this.#ended.has(turn.id)) {
      this.#mine.add(turn.id);
      if (this.#turnId !== turn.id) this.#setStatus("running");
      this.#turnId = turn.id;
    }
    while (!turn.outcome) {
      const isOver = this.#ended.has(turn.id) || this.#done.signal.aborted;
      if (!isOver) await new Promise((resolve) => this.#turnEnds.addEventListener(turn.id, resolve, { once: true }));
      if (this.#done.signal.aborted && this.#status !== "ended") throw this.#done.signal.reason;
      turn = await this.request("GET", `/turns/${turn.id}?wait=10`);
    }
    const { id: turnId, outcome, failure } = turn;
    const result = { turnId, outcome, text: turn.text, toolResults: turn.tool_results.map(camel), usage: turn.usage ? camel(turn.usage) : null };
    if (outcome === "failed") throw new TreadleError(failure.class.toUpperCase(), failure.message, result);
    if (outcome === "canceled") throw new TreadleError("TURN_CANCELED", "the turn was canceled", result);
    return result;
  }
  async cancel() {
    const turn = await this.#starting?.catch(() => undefined);
    await this.#cancelTurn(turn?.id ?? this.#turnId);
  }
  /** @param {string | undefined} id */
  async #cancelTurn(id) {
    if (id && !this.#ended.has(id)) await this.request("POST", `/turns/${id}/cancel`);
  }
  async end() {
    await this.request("POST", "/end");
    await sleep(1000, this.#done.signal); // the stream tells what was open; without one this has to do
    this.finish(false);
  }
  close() {
    this.#stop(new TreadleError("SESSION_CLOSED", "this page closed its handle of the session; resumeSession() makes a new one"));
  }
  getStatus() {
    return this.#status;
  }
  getConnection() {
    return this.#connection;
  }
  async getState() {
    const state = camel(await this.request("GET", ""));
    state.skills = { ...state.skills, tools: state.skills.tools.map(camel) };
    state.pendingToolCalls = state.pendingToolCalls.map((c) => ({ ...camel(c), ...(c.claim && { claim: camel(c.claim) }) }));
    return state;
  }
  async replaceTools(tools, options = {}) {
    checkOptions("replaceTools", options, ["guidance"]);
    const checked = checkTools(tools);
    const skills = await this.request("PUT", "/tools", { body: { tools: declarations(checked), guidance: options.guidance } });
    this.#inline.clear();
    this.#declare(checked, skills);
    return this;
  }
  /** @param {Tool[]} tools those with handlers @param {any} skills all that the session declares */
  #declare(tools, skills) {
    this.#declared = new Set((skills.tools ?? []).map((t) => t.name));
    for (const { name, handler } of tools) if (handler) this.#inline.set(name, handler);
  }

  onTool(name, fn) {
    const isFallback = typeof name === "function";
    if (isFallback) [name, fn] = ["", name];
    const known = [...this.#declared].join(", ") || "none";
    check(isFallback || this.#declared.has(name), `onTool: no tool ${JSON.stringify(name)} is declared, but ${known}; use createSession or replaceTools`);
    check(typeof fn === "function", "onTool takes (name, handler) or (handler); the handler is a function");
    const entry = { fn: !isFallback ? fn : (args, ctx) => fn(ctx.tool, args, ctx) };
    this.#handlers.set(name, [...(this.#handlers.get(name) ?? []), entry]);
    this.#eachCall((call) => call.wake()); // one may have waited for this
    return () => void this.#handlers.set(name, (this.#handlers.get(name) ?? []).filter((e) => e !== entry));
  }
  onChat(fn) {
    const off = this.#on("chat", fn);
    let isWanted = true;
    queueMicrotask(() => {
      for (const said of this.#chat.values()) if (isWanted) this.#tell(fn, this.#view(said, said.text));
    });
    return () => {
      isWanted = false;
      off();
    };
  }
  onStatus = (fn) => this.#on("status", fn);
  onEvent = (fn) => this.#on("event", fn);
  onError = (fn) => this.#on("error", fn);
  onEnded = (fn) => this.#on("ended", fn);
  onConnection = (fn) => this.#on("connection", fn);

  /** @param {string} kind */
  #on(kind, fn) {
    check(typeof fn === "function", `a listener for ${kind} must be a function`);
    const entry = { fn };
    const listeners = this.#listeners.get(kind) ?? new Set();
    this.#listeners.set(kind, listeners.add(entry));
    return () => void listeners.delete(entry);
  }
  /** @param {string} kind @param {...unknown} args */
  emit(kind, ...args) {
    for (const { fn } of [...(this.#listeners.get(kind) ?? [])]) this.#tell(fn, ...args);
  }
  /**
   * A listener that throws stops nothing here; as with any EventTarget its fault goes to the global handler.
   * @param {Function} fn @param {...unknown} args
   */
  #tell(fn, ...args) {
    try {
      fn(...args);
    } catch (e) {
      queueMicrotask(() => {
        throw e;
      });
    }
  }

  // What Call asks.

  /** @param {string} method @param {string} path in the session @param {RequestOptions} [options] */
  request(method, path, options) {
    return this.#client.request(method, this.#path + path, { hurry: () => this.#hurry.signal, ...options });
  }
  /** @param {string} tool @returns {Handler | undefined} */
  handlerOf(tool) {
    return this.#handlers.get(tool)?.at(-1)?.fn ?? this.#inline.get(tool) ?? this.#handlers.get("")?.at(-1)?.fn;
  }
  /** Tells whether this client started a turn, or may just have done so. @param {string} turnId */
  started(turnId) {
    return this.#starting !== undefined || this.#mine.has(turnId);
  }

  // What Stream tells.

  /** Takes the state as the truth: replays the history, offers what is pending, and returns the cursor. @returns {Promise<string>} */
  async sync() {
    const state = this.#given ?? (await this.request("GET", "", { patience: 0, signal: this.#done.signal }));
    let { cursor, status } = state;
    const history = [];
    for (let more = this.#options.history !== false, after = ""; more; cursor = after) {
      const options = { headers: { Accept: "application/json" }, patience: 0, signal: this.#done.signal };
      const page = await this.request("GET", `/events?limit=200&after=${encodeURIComponent(after)}`, options);
      history.push(...page.events);
      ({ more, cursor: after } = page);
    }
    this.#given = undefined;
    this.#syncs++;
    // A turn that was started here while the state was read may be on its way.
    const started = this.#turnId && this.#mine.has(this.#turnId) ? this.#turnId : undefined;
    this.#turnId = state.turn_id ?? started;
    if (this.#options.history === false) {
      for (const call of state.pending_tool_calls) {
        this.#offer({ ...call, tool_call_id: call.id });
        if (call.claim) this.#calls.get(call.id)?.held(call.claim.client_id, true);
      }
      for (const id of this.#mine) if (id !== state.turn_id) this.#turnOver(id);
    }
    const before = new Map(this.#chat);
    if (history.length) for (const [key, said] of before) if (!said.done) this.#chat.delete(key); // its pieces come again
    for (const { id, event } of history) {
      this.apply(event, id, true);
      if (event.type === "status_changed") ({ status } = event);
    }
    for (const [key, said] of this.#chat) {
      const old = before.get(key);
      if (old?.text !== said.text || old.done !== said.done) this.emit("chat", this.#view(said, said.text));
    }
    if (!started || status !== "idle" || this.#ended.has(started)) this.#setStatus(status);
    this.#eachCall((call) => {
      if (call.sync === this.#syncs) this.#serve(call);
      else this.#settle(call.id, new TreadleError("TOOL_CALL_NOT_FOUND", "the server no longer knows the call"));
    });
    const last = history.at(-1)?.event;
    if (last?.type === "session_ended") this.finish(!!last.deleted);
    return cursor;
  }
  /** @param {string} id @param {boolean} replay */
  apply(event, id, replay) {
    if (this.#done.signal.aborted) return;
    this.emit("event", event, { id, replay });
    const { turn_id: turnId, tool_call_id: callId } = event;
    switch (event.type) {
      case "tools_replaced":
        this.#declared = new Set(event.tools);
        break;
      case "status_changed":
        if (!replay) this.#setStatus(event.status);
        break;
      case "turn_started":
        this.#turnId = turnId;
        this.#say(event, "user", event.input.map((part) => part.text).join("\n"), replay);
        break;
      case "text_delta":
      case "attempt_voided":
      case "message":
        this.#say(event, "assistant", event.text ?? "", replay);
        break;
      case "tool_call":
        if (event.source === "page") this.#offer(event, replay);
        break;
      case "tool_claimed":
        this.#calls.get(callId)?.held(event.client_id, replay);
        break;
      case "tool_progress": {
        const call = this.#calls.get(callId);
        if (call) call.offer = { ...call.offer, deadline: event.deadline };
        break;
      }
      case "tool_result": {
        const other = { code: "TOOL_CALL_SETTLED", message: "another client settled the call" };
        const { code, message } = event.settled_by === "page" ? other : event.result.error ?? other;
        this.#settle(callId, new TreadleError(code, message, { settledBy: event.settled_by }));
        break;
      }
      case "turn_completed":
      case "turn_failed":
      case "turn_canceled":
        this.#turnOver(turnId);
        break;
      case "session_ended":
        if (!replay) this.finish(!!event.deleted);
    }
  }
  /** @param {import("./client.js").ConnectionState} state */
  connected(state) {
    if (state === this.#connection) return;
    this.#connection = state;
    if (state === "open") {
      this.#hurry.abort();
      this.#hurry = new AbortController();
    }
    this.emit("connection", state);
  }
  /** The session is over for everybody. @param {boolean} deleted */
  finish(deleted) {
    if (this.#done.signal.aborted) return;
    this.#setStatus("ended");
    this.#stop(new TreadleError("SESSION_ENDED", deleted ? "the session was deleted" : "the session has ended; create a new one"));
    this.emit("ended", { deleted });
  }
  /** The server refuses to go on. @param {TreadleError} fault */
  fail(fault) {
    this.#stop(fault);
    this.emit("error", fault);
  }
  /** Stops everything here. @param {TreadleError} reason */
  #stop(reason) {
    if (this.#done.signal.aborted) return;
    this.#done.abort(reason);
    this.#eachCall((call) => this.#settle(call.id, reason));
    for (const id of this.#mine) this.#turnEnds.dispatchEvent(new Event(id));
    this.connected("closed");
  }

  /** @param {import("./client.js").SessionStatus} status */
  #setStatus(status) {
    if (status === this.#status || this.#status === "ended") return;
    this.#status = status;
    this.emit("status", status);
  }
  /** @param {(call: Call) => void} fn */
  #eachCall(fn) {
    for (const call of [...this.#calls.values()]) if (call) fn(call);
  }
  /** @param {any} offer @param {boolean} [isReplay] its end decides whether the call is pending */
  #offer(offer, isReplay = true) {
    const id = offer.tool_call_id;
    if (!this.#calls.has(id)) this.#calls.set(id, new Call(this, this.#client, id));
    const call = this.#calls.get(id);
    call?.offered(offer, this.#syncs);
    if (call && !isReplay) this.#serve(call);
  }
  /** @param {Call} call */
  #serve(call) {
    if (!this.#options.observe) call.serve();
  }
  /** @param {string} id @param {TreadleError} reason */
  #settle(id, reason) {
    this.#calls.get(id)?.settled(reason);
    this.#calls.set(id, null);
  }
  /** @param {string} id */
  #turnOver(id) {
    if (this.#turnId === id) this.#turnId = undefined;
    this.#mine.delete(id);
    this.#ended.add(id);
    if (this.#ended.size > 32) this.#ended.delete([...this.#ended][0]);
    this.#turnEnds.dispatchEvent(new Event(id));
  }
  /** @param {"user" | "assistant"} role @param {string} text @param {boolean} replay */
  #say(event, role, text, replay) {
    const { type, turn_id: turnId, step = 0, attempt = 0 } = event;
    const key = `${turnId}:${step}`;
    const known = this.#chat.get(key);
    const isPiece = type === "text_delta";
    const shown = known && (!isPiece || known.attempt === attempt) ? known.text : "";
    if (known?.done || (!known && !isPiece && !text)) return; // said before, or nothing to say
    const voided = type === "attempt_voided";
    const now = { role, turnId, step, attempt, text: isPiece ? shown + text : text, delta: "", done: !isPiece && !voided, voided };
    this.#chat.set(key, now);
    if (!replay) this.emit("chat", this.#view(now, now.text.startsWith(shown) ? now.text.slice(shown.length) : ""));
  }
  /** @param {import("./client.js").ChatMessage} said @param {string} delta */
  #view({ role, turnId, step, text, done, voided }, delta) {
    return { role, turnId, step, text, delta, done, voided };
  }
}
