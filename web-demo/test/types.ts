// What TypeScript makes of client.d.ts. Nothing runs: `tsc -p test` is the test.
import { defineTool, Treadle, TreadleError, type ChatMessage, type Session, type TurnResult } from "../client.js";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Equal<A, B>): void => {};

const addShape = defineTool({
  name: "add_shape",
  description: "Adds a shape to the board.",
  argsSchema: {
    type: "object",
    properties: {
      kind: { enum: ["circle", "square"] },
      size: { type: "integer", minimum: 1 },
      label: { type: ["string", "null"] },
      at: { type: "object", properties: { x: { type: "number" }, y: { type: "number" } }, required: ["x", "y"] },
      tags: { type: "array", items: { type: "string" } },
      fill: { oneOf: [{ const: "none" }, { type: "object", properties: { color: { type: "string" } }, required: ["color"] }] },
      extra: {},
    },
    required: ["kind", "at"],
  },
  timeoutMs: 1000,
  handler: (args, ctx) => {
    same<
      typeof args,
      {
        kind: "circle" | "square";
        at: { x: number; y: number };
        size?: number;
        label?: string | null;
        tags?: string[];
        fill?: "none" | { color: string };
        extra?: unknown;
      }
    >(true);
    same<typeof ctx.mayHaveRun, boolean>(true);
    same<typeof ctx.deadline, Date>(true);
    ctx.progress({ message: "half", fraction: 0.5 });
    // @ts-expect-error a shape has no weight
    return args.weight;
  },
});
same<typeof addShape.name, "add_shape">(true);

const getPage = defineTool({ name: "get_page", description: "Reads the page.", handler: (args) => same<typeof args, Record<string, never>>(true) });

// @ts-expect-error a description is needed
defineTool({ name: "x" });
// @ts-expect-error not args_schema, as on the wire
defineTool({ name: "x", description: "y", args_schema: {} });

export async function use() {
  const treadle = new Treadle({ baseUrl: "https://agent.example.com", token: async () => "secret", fetch });
  const session = await treadle.createSession({ model: "demo", skills: { guidance: "Draw.", tools: [addShape, getPage] }, metadata: { page: "board" } });

  const off = session.onTool("add_shape", async (args, { signal }) => {
    same<typeof args.kind, "circle" | "square">(true);
    signal.throwIfAborted();
    return { error: { code: "BOARD_FULL", message: "There is no room.", retryable: true } };
  });
  same<typeof off, () => void>(true);
  session.onTool("get_page", (args) => same<typeof args, Record<string, never>>(true));
  session.onTool((tool, _args, ctx) => {
    same<typeof tool, "add_shape" | "get_page">(true);
    return ctx.toolCallId;
  });
  // @ts-expect-error there is no such tool
  session.onTool("add_shap", () => {});
  session.onChat((message) => same<typeof message, ChatMessage>(true));
  session.onStatus((status) => same<typeof status, "idle" | "running" | "waiting_tool_result" | "ended">(true));
  session.onConnection((state) => same<typeof state, "connecting" | "open" | "reconnecting" | "closed">(true));
  session.onEvent((event, { id, replay }) => [event.type, id, replay]);
  session.onError((error) => same<typeof error, TreadleError>(true));
  session.onEnded(({ deleted }) => deleted);

  const turn = await session.sendText("hello", { signal: AbortSignal.timeout(1000), maxSteps: 3 });
  same<typeof turn, TurnResult>(true);
  const result = turn.toolResults[0]?.result;
  if (result?.ok) same<typeof result.output, unknown>(true);
  else if (result) same<typeof result.error.code, string>(true);
  // @ts-expect-error text only
  await session.sendText(1);

  const replaced = await session.replaceTools([getPage], { guidance: "Read." });
  // @ts-expect-error it was replaced
  replaced.onTool("add_shape", () => {});

  const resumed = await treadle.resumeSession(session.id, { tools: [addShape], history: false });
  resumed.onTool("add_shape", (args) => args.at.x);
  const watched: Session = await treadle.resumeSession(session.id, { observe: true });
  watched.onTool("anything", (args) => args.whatever);
  // @ts-expect-error tools are an array
  await treadle.createSession({ skills: { tools: addShape } });

  try {
    await session.cancel();
    await session.end();
    session.close();
  } catch (e) {
    if (e instanceof TreadleError) same<typeof e.details, Record<string, unknown>>(true);
  }
}
