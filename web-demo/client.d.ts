/** What fails, fails with this: a stable code to switch on, a message for people, and facts. */
export declare class TreadleError extends Error {
  constructor(code: string, message: string, details?: Record<string, unknown>, options?: ErrorOptions);
  /**
   * A problem code of the server (SESSION_BUSY, SESSION_NOT_FOUND, …), the class of a failed turn in capitals (RATE_LIMIT, …), or
   * one of this module: INVALID_INPUT (thrown at once, with what to do), TURN_CANCELED, SESSION_ENDED, SESSION_CLOSED,
   * CONNECTION_FAILED, PROTOCOL_ERROR. The reasons of a handler's signal are listed at ToolContext.signal.
   */
  code: string;
  /** The problem's facts (status, turnId, pointer, …); for a turn that failed or was canceled, what it had come to: a TurnResult. */
  details: Record<string, unknown>;
}

/** A JSON Schema 2020-12. Written in place, it gives the handler's arguments their type. */
export type JSONSchema = { readonly [keyword: string]: unknown };

type Simplify<T> = { [K in keyof T]: T[K] };
type Required_<S> = S extends { readonly required: readonly (infer R)[] } ? R : never;
type FromProperties<P, R> = Simplify<
  { -readonly [K in keyof P as K extends R ? K : never]: FromSchema<P[K]> } & { -readonly [K in keyof P as K extends R ? never : K]?: FromSchema<P[K]> }
>;
type FromType<T, S> =
  T extends "string" ? string
  : T extends "number" | "integer" ? number
  : T extends "boolean" ? boolean
  : T extends "null" ? null
  : T extends "array" ? (S extends { readonly items: infer I } ? FromSchema<I>[] : unknown[])
  : T extends "object" ? (S extends { readonly properties: infer P } ? FromProperties<P, Required_<S>> : Record<string, unknown>)
  : unknown;
/** The values that a schema allows, as far as type, properties, required, items, enum, const, oneOf and anyOf tell; else unknown. */
export type FromSchema<S> =
  S extends { readonly const: infer C } ? C
  : S extends { readonly enum: readonly (infer E)[] } ? E
  : S extends { readonly oneOf: readonly (infer O)[] } ? FromSchema<O>
  : S extends { readonly anyOf: readonly (infer O)[] } ? FromSchema<O>
  : S extends { readonly type: readonly (infer T)[] } ? FromType<T, S>
  : S extends { readonly type: infer T } ? FromType<T, S>
  : unknown;
/** The arguments of a tool with this argsSchema; without one there are none. */
export type ArgsFromSchema<S> = [keyof S] extends [never] ? Record<string, never> : FromSchema<S>;

/** What a handler may return in place of an output; nothing else may stand beside `error`. */
export interface ToolErrorResult {
  error: { code: string; message: string; details?: unknown; retryable?: boolean };
}

/** What a handler knows of its call. */
export interface ToolContext {
  readonly sessionId: string;
  /** The turn that sendText started: a call never starts a turn of its own. */
  readonly turnId: string;
  readonly toolCallId: string;
  readonly tool: string;
  /** Counts the offers of the call, from 1. */
  readonly attempt: number;
  /** True when somebody may have begun this call before: ask before you repeat what cannot be undone. */
  readonly mayHaveRun: boolean;
  /** When the server stops waiting; it moves when progress extends it. */
  readonly deadline: Date;
  /**
   * Aborts when the answer is no longer wanted: close the modal, stop the work. `signal.reason` is a TreadleError whose code is
   * TOOL_TIMEOUT, TOOL_CANCELED (the turn was canceled or the session ended), TOOL_INTERRUPTED (the turn failed),
   * TOOL_CALL_SETTLED (another client answered), TOOL_CALL_NOT_FOUND, SESSION_ENDED (also when it was deleted), SESSION_CLOSED
   * (by close()), or that of the fault which ended the connection.
   */
  readonly signal: AbortSignal;
  /**
   * Shows how far the call is, and extends its deadline as far as the tool's maxTimeoutMs. Call it as often as you like: the latest
   * report is sent at most four times a second. fraction is the part that is done, 0 to 1.
   */
  progress(report: { message?: string; fraction?: number }): void;
}

/** Runs a tool in the page. Arguments satisfy the schema but come from a model: check what the user may do. May return a promise. */
export type ToolHandler<Args> = (args: Args, ctx: ToolContext) => unknown;

/** A tool as a page declares it. */
export interface ToolDefinition<Name extends string = string, Args = any> {
  readonly name: Name;
  readonly description: string;
  readonly argsSchema?: JSONSchema;
  readonly timeoutMs?: number;
  readonly maxTimeoutMs?: number;
  readonly resultSchema?: JSONSchema | boolean;
  readonly handler?: ToolHandler<Args>;
}

/**
 * Checks a declaration and gives its handler's arguments the type of argsSchema. The handler stays in the page; the server is told
 * the rest.
 */
export declare function defineTool<const Name extends string, const Schema extends JSONSchema = {}>(tool: {
  /** Letters, digits, "_", "." and "-", beginning with a letter, at most 64; unique in the session. */
  name: Name;
  /** Tells the model when and how to use the tool. */
  description: string;
  /** The root must be an object schema; absent means no parameters. Integers beyond 2^53 lose digits: declare them as strings. */
  argsSchema?: Schema;
  /** How long the server waits for the result, 60,000 ms by default; give a tool that asks the user minutes. */
  timeoutMs?: number;
  /** How far ctx.progress() may extend that, counted from the offer. */
  maxTimeoutMs?: number;
  /** What an output must satisfy; one that does not becomes the error TOOL_RESULT_INVALID. */
  resultSchema?: JSONSchema | boolean;
  handler?: ToolHandler<ArgsFromSchema<Schema>>;
}): ToolDefinition<Name, ArgsFromSchema<Schema>>;

/** waiting_tool_result: at least one call waits for a page. In all but idle and ended the session is busy. */
export type SessionStatus = "idle" | "running" | "waiting_tool_result" | "ended";
/** closed: this handle hears nothing more, by close(), the session's end, or a fault that onError told. */
export type ConnectionState = "connecting" | "open" | "reconnecting" | "closed";

/** Something that was said. The pieces of one message have the same turnId and step; 0 is the user's. */
export interface ChatMessage {
  role: "user" | "assistant";
  turnId: string;
  step: number;
  /** The whole text so far. */
  text: string;
  /** What was added to the text; "" when the text changed otherwise. */
  delta: string;
  /** True when nothing will change any more. */
  done: boolean;
  /** True when the model's answer broke off: what was shown of it is void, and may come anew. */
  voided: boolean;
}

export interface Usage {
  /** null is unknown, which is not 0. */
  inputTokens: number | null;
  cachedTokens: number | null;
  outputTokens: number | null;
  reasoningTokens: number | null;
}

export interface ToolResult {
  toolCallId: string;
  tool: string;
  source: string;
  args: unknown;
  result: { ok: true; output: unknown } | { ok: false; error: { code: string; message: string; details?: unknown; retryable?: boolean } };
  settledBy: "page" | "native" | "validation" | "policy" | "timeout" | "cancel" | "interrupted";
  step: number;
  durationMs: number;
  time: string;
}

export interface TurnResult {
  turnId: string;
  outcome: "completed" | "failed" | "canceled";
  /** The last thing that the model said. */
  text: string;
  toolResults: ToolResult[];
  usage: Usage | null;
}

/** A call as the server shows it. */
export interface PendingToolCall {
  id: string;
  turnId: string;
  tool: string;
  source: string;
  args: unknown;
  step: number;
  status: "pending";
  attempt: number;
  mayHaveRun: boolean;
  deadline: string;
  claim?: { clientId: string; expires: string };
  time: string;
}

/** A session as the server shows it. */
export interface SessionState {
  id: string;
  status: SessionStatus;
  model: string;
  subject?: string;
  metadata?: Record<string, string>;
  turns: number;
  createdAt: string;
  updatedAt: string;
  endedAt?: string;
  skills: { guidance?: string; tools: Omit<ToolDefinition, "handler">[] };
  turnId?: string;
  pendingToolCalls: PendingToolCall[];
  cursor: string;
}

/** An event as it is on the wire, with snake_case members; the server's openapi.yaml describes all types. New ones may come. */
export interface TreadleEvent {
  type: string;
  session_id: string;
  turn_id?: string;
  tool_call_id?: string;
  time: string;
  [member: string]: any;
}

/** Takes back what was registered. It may be called twice. */
export type Unsubscribe = () => void;

type NameOf<Tools extends readonly ToolDefinition[]> = Tools[number]["name"];
type ArgsOf<Tools extends readonly ToolDefinition[], Name extends string> =
  string extends NameOf<Tools> ? any
  : Extract<Tools[number], { readonly name: Name }> extends ToolDefinition<any, infer Args> ? Args
  : unknown;

/** This page's handle of a session. */
export interface Session<Tools extends readonly ToolDefinition[] = readonly ToolDefinition[]> {
  readonly id: string;
  /**
   * Starts a turn and waits for its end. Rejects with the TreadleError of a turn that failed (its class in capitals) or was canceled
   * (TURN_CANCELED), and with the server's refusal, such as SESSION_BUSY while another turn runs.
   */
  sendText(
    text: string,
    options?: {
      /** Aborting it cancels the turn; the promise rejects with TURN_CANCELED once the server has confirmed that. */
      signal?: AbortSignal;
      model?: string;
      maxSteps?: number;
      /** Another sendText with this key and text waits for the same turn. By default each sendText has its own. */
      idempotencyKey?: string;
    },
  ): Promise<TurnResult>;
  /** Cancels the turn that runs, whoever started it; if none does, nothing happens. */
  cancel(): Promise<void>;
  /** Ends the session for everybody and keeps its transcript. */
  end(): Promise<void>;
  /** Stops listening and leaves the session as it is. Pending promises reject with SESSION_CLOSED. */
  close(): void;
  getStatus(): SessionStatus;
  getConnection(): ConnectionState;
  /** Asks the server for its view of the session. */
  getState(): Promise<SessionState>;
  /**
   * Puts other tools in force, from the model's next step on, with their handlers in place of the earlier tools' own; what onTool
   * registered stays. Resolves to this session, typed for the new tools.
   */
  replaceTools<const T extends readonly ToolDefinition[]>(tools: T, options?: { guidance?: string }): Promise<Session<T>>;

  /** Handles one declared tool, before the tool's own handler. The last registration counts. */
  onTool<Name extends NameOf<Tools>>(name: Name, handler: ToolHandler<ArgsOf<Tools, Name>>): Unsubscribe;
  /** Handles every tool that has no other handler. */
  onTool(handler: (tool: NameOf<Tools>, args: any, ctx: ToolContext) => unknown): Unsubscribe;
  /** Hears the conversation, the user's messages included: first all that was said, then each change. */
  onChat(listener: (message: ChatMessage) => void): Unsubscribe;
  /** Hears each change of getStatus(). */
  onStatus(listener: (status: SessionStatus) => void): Unsubscribe;
  /** Hears each change of getConnection(). */
  onConnection(listener: (state: ConnectionState) => void): Unsubscribe;
  /**
   * Hears every event. replay tells those of the history from new ones. A `reset` (of type, without effect on what was said) means
   * that the history is told anew.
   */
  onEvent(listener: (event: TreadleEvent, meta: { id: string; replay: boolean }) => void): Unsubscribe;
  /** Hears what no promise tells: that the server refuses the connection (the session is then closed here), or a result. */
  onError(listener: (error: TreadleError) => void): Unsubscribe;
  /** Hears, once, that the session ended for everybody. */
  onEnded(listener: (end: { deleted: boolean }) => void): Unsubscribe;
}

export interface TreadleOptions {
  /** The server, such as "https://agent.example.com"; absent means where this module was loaded from. */
  baseUrl?: string;
  /** Sent as a bearer token; a function is asked before each request, so that short-lived tokens can be renewed. */
  token?: string | (() => string | Promise<string>);
  /** In place of the global fetch. */
  fetch?: typeof globalThis.fetch;
  /** The name under which this client claims calls. By default the tab's own; if you give one, no two clients may share it. */
  clientId?: string;
  /** How long others wait for a call when this client dies while it runs: 1,000 to 300,000 ms, by default 15,000. */
  leaseMs?: number;
}

/** A server with Treadle. Sessions share nothing but this object. */
export declare class Treadle {
  constructor(options?: TreadleOptions);
  createSession<const T extends readonly ToolDefinition[] = readonly []>(options?: {
    /** A name of GET /v1/models; absent means the server's default. */
    model?: string;
    skills?: {
      /** Tells the model when and how to use the tools. Product text: never put page content, user input or results into it. */
      guidance?: string;
      tools?: T;
    };
    metadata?: Record<string, string>;
    /** Creating again with this key gives the same session. By default each call creates a new one. */
    idempotencyKey?: string;
  }): Promise<Session<T>>;
  /** Takes up a session that exists, in any page: after a reload, in a second tab, in Node. */
  resumeSession<const T extends readonly ToolDefinition[] = readonly ToolDefinition[]>(
    id: string,
    options?: {
      /** Brings their handlers. What the session declares stays; replaceTools() changes that. */
      tools?: T;
      /** False leaves out what was said and done before: onChat and onEvent begin with what comes. */
      history?: boolean;
      /** True only watches: this handle answers no call, not even with TOOL_HANDLER_NOT_FOUND. */
      observe?: boolean;
    },
  ): Promise<Session<T>>;
}

/**
 * Writes a value as JSON, or throws a TreadleError TOOL_RESULT_NOT_JSON that names the place of what JSON would lose: what handlers
 * return goes through this.
 */
export declare function encodeJSON(value: unknown, limit?: number, at?: string): string;

/** Reads an event stream as the WHATWG describes it: push bytes as they come. */
export declare class EventStreamParser {
  constructor(onFrame: (frame: { id: string; type: string; data: string }) => void, onRetry?: (ms: number) => void);
  push(bytes: Uint8Array): void;
}
