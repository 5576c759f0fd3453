// The tools that this page offers. Handlers treat their arguments as untrusted: the schema was checked, the rules of the page were not.

import { defineTool } from "../sdk/v1/client.js";
import { COLORS, KINDS, SIZES, addShape, place, removeShapes, rows } from "./workspace.js";

const TEN_MINUTES = 10 * 60_000;
const MAX_SHAPES = 60;

export const GUIDANCE = `You operate a small page: a board with shapes, a counter and a text.
Read before you change: call read_board before you refer to shapes, get_selection before you edit the selected text.
Ask with ask_user when a request leaves a choice to the person, and before reset_board. Never guess what is selected.`;

const object = (properties, required = []) => ({ type: "object", properties, required, additionalProperties: false });
const refuse = (code, message) => ({ error: { code, message } });

/** How a call says which shape it means. */
const selector = {
  kind: { enum: KINDS },
  color: { enum: COLORS },
  which: { enum: ["selected", "newest", "oldest", "all"], description: "Among several that fit." },
  id: { type: "string", description: "The id that read_board gave." },
};

// Both spellings of the first two, for a model that only matches words.
const STYLES = {
  "upper case": (s) => s.toUpperCase(),
  "lower case": (s) => s.toLowerCase(),
  uppercase: (s) => s.toUpperCase(),
  lowercase: (s) => s.toLowerCase(),
  "title case": (s) => s.replace(/\p{L}[\p{L}'’]*/gu, (w) => w[0].toUpperCase() + w.slice(1).toLowerCase()),
  reversed: (s) => [...s].reverse().join(""),
};

/** Makes the tools over a workspace; `ask({question, options?, swatches?}, ctx)` resolves to the person's answer, or to null. */
export function makeTools(workspace, ask) {
  return [...personTools(ask), ...boardTools(workspace, ask), ...counterTools(workspace), ...textTools(workspace)];
}

function boardTools(workspace, ask) {
  return [
    defineTool({
      name: "read_board",
      description: "List the shapes: how many there are, with id, colour, size and position.",
      handler: () => {
        const { shapes, selected } = workspace.state;
        return { shapes: shapes.map(({ id, color, size, x, y }) => ({ id, color, size, x, y })), selected };
      },
    }),
    defineTool({
      name: "add_shape",
      description: 'Draw or put a circle, square or triangle on the board. With the color "ask" the person chooses the colour.',
      timeoutMs: TEN_MINUTES,
      argsSchema: object({
        kind: { enum: KINDS },
        color: { enum: ["ask", ...COLORS] },
        size: { enum: Object.keys(SIZES) },
        count: { type: "integer", minimum: 1, maximum: 12, description: "How many; 1 if absent." },
        x: { type: "number", description: "Center, 0 (left) to 640; absent: a free place." },
        y: { type: "number", description: "Center, 0 (top) to 400." },
      }, ["kind"]),
      handler: async ({ kind, color, size, count = 1, x, y }, ctx) => {
        if (workspace.state.shapes.length + count > MAX_SHAPES) return refuse("BOARD_FULL", `The board holds ${MAX_SHAPES} shapes.`);
        if (color === "ask") {
          color = await ask({ question: `Which colour should the ${kind} have?`, options: COLORS, swatches: true }, ctx);
          if (color === null) return refuse("DECLINED", "The person did not choose a colour.");
        }
        return workspace.once(ctx.toolCallId, (state) => {
          const added = Array.from({ length: count }, () => addShape(state, { kind, color, size, x, y }));
          state.selected = added.at(-1).id;
          return { added: added.map((shape) => shape.id), color: added[0].color };
        });
      },
    }),
    defineTool({
      name: "move_shape",
      description: "Move a circle, square or triangle in a direction, or to a position on the board.",
      argsSchema: object({
        ...selector,
        direction: { enum: ["left", "right", "up", "down", "center", "middle"] },
        distance: { type: "number", exclusiveMinimum: 0, description: "80 if absent." },
        x: { type: "number", description: "Center, 0 (left) to 640." },
        y: { type: "number", description: "Center, 0 (top) to 400." },
      }),
      handler: (args, ctx) =>
        workspace.once(ctx.toolCallId, (state) => {
          if (!args.direction && args.x === undefined && args.y === undefined) return refuse("NO_DESTINATION", "Say in which direction, or to which x and y.");
          const { shapes, problem } = find(state, args);
          if (problem) return problem;
          for (const shape of shapes) move(shape, args);
          return { moved: shapes.map(({ id, x, y }) => ({ id, x, y })) };
        }),
    }),
    defineTool({
      name: "remove_shape",
      description: "Take a circle, square or triangle off the board.",
      argsSchema: object(selector),
      handler: (args, ctx) =>
        workspace.once(ctx.toolCallId, (state) => {
          const { shapes, problem } = find(state, args);
          if (problem) return problem;
          removeShapes(state, shapes);
          return { removed: shapes.map((shape) => shape.id), left: state.shapes.length };
        }),
    }),
    defineTool({
      name: "tidy_board",
      description: "Tidy up: arrange all in rows, one after the other.",
      timeoutMs: 30_000,
      handler: (_args, ctx) => tidy(workspace, ctx),
    }),
    defineTool({
      name: "reset_board",
      description: "Clear everything away.",
      handler: (_args, ctx) =>
        workspace.once(ctx.toolCallId, (state) => {
          const removed = state.shapes.length;
          removeShapes(state, state.shapes);
          return { removed };
        }),
    }),
  ];
}

function find(state, { kind, color, which, id }) {
  const fits = state.shapes.filter((s) => (!id || s.id === id) && (!kind || s.kind === kind) && (!color || s.color === color));
  const selected = fits.filter((s) => s.id === state.selected);
  const wanted = [color, kind ?? "shape"].filter(Boolean).join(" ");
  if (which === "selected" && !selected.length) return { problem: refuse("NOTHING_SELECTED", `No ${wanted} is selected on the board.`) };
  if (!fits.length) return { problem: refuse("NO_SUCH_SHAPE", `There is no ${id ?? wanted} on the board.`) };
  if (which === "all" || fits.length === 1) return { shapes: fits };
  if (which === "newest") return { shapes: fits.slice(-1) };
  if (which === "oldest") return { shapes: fits.slice(0, 1) };
  if (selected.length) return { shapes: selected };
  return { problem: refuse("AMBIGUOUS_SHAPE", `${fits.length} shapes fit: ${fits.map((s) => s.id).join(", ")}. Say which, or select one.`) };
}

function move(shape, { direction, distance = 80, x = shape.x, y = shape.y }) {
  const [dx, dy] = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] }[direction] ?? [0, 0];
  if (direction === "center" || direction === "middle") place(shape, 320, 200);
  else place(shape, x + dx * distance, y + dy * distance);
}

/** Moves one shape at a time, to have some progress to show. */
async function tidy(workspace, ctx) {
  const pause = async () => {
    await new Promise((resolve) => setTimeout(resolve, 350));
    if (ctx.signal.aborted) throw ctx.signal.reason;
  };
  // The calls of one step run side by side: what another one adds now is to be arranged too.
  await pause();
  const ids = workspace.state.shapes.map((shape) => shape.id);
  const places = rows(ids.length);
  for (const [i, id] of ids.entries()) {
    ctx.progress({ message: `${i} of ${ids.length} shapes`, fraction: i / ids.length });
    await pause();
    workspace.update((state) => {
      const shape = state.shapes.find((s) => s.id === id);
      if (shape) place(shape, places[i].x, places[i].y);
    });
  }
  return { arranged: ids.length };
}

function counterTools(workspace) {
  return [
    defineTool({
      name: "read_counter",
      description: "Read the value of the counter.",
      handler: () => ({ value: workspace.state.counter }),
    }),
    defineTool({
      name: "set_counter",
      description: "Set or reset the counter, or add to it: increase, decrease, subtract.",
      argsSchema: object({
        value: { type: "integer", minimum: -1_000_000, maximum: 1_000_000, default: 0 },
        operation: { enum: ["set", "add", "increase", "subtract", "decrease"], description: "set if absent." },
      }, ["value"]),
      handler: ({ value, operation }, ctx) =>
        workspace.once(ctx.toolCallId, (state) => {
          const before = state.counter;
          const sign = { add: 1, increase: 1, subtract: -1, decrease: -1 }[operation];
          state.counter = sign ? before + sign * value : value;
          return { value: state.counter, before };
        }),
    }),
  ];
}

function textTools(workspace) {
  const edit = (ctx, change) =>
    workspace.once(ctx.toolCallId, (state) => {
      const { start, end } = state.selection;
      if (start === end) return refuse("NO_SELECTION", "Nothing is selected in the text.");
      const before = state.text.slice(start, end);
      const after = change(before);
      state.text = state.text.slice(0, start) + after + state.text.slice(end);
      state.selection = { start, end: start + after.length };
      return { before, after };
    });
  return [
    defineTool({
      name: "get_selection",
      description: "Read the text that is selected, and where it begins and ends.",
      handler: () => {
        const { text, selection: { start, end } } = workspace.state;
        return { selected: text.slice(start, end), start, end };
      },
    }),
    defineTool({
      name: "replace_selection",
      description: "Replace the selected text.",
      argsSchema: object({ text: { type: "string", maxLength: 4000 } }, ["text"]),
      handler: ({ text }, ctx) => edit(ctx, () => text),
    }),
    defineTool({
      name: "transform_selection",
      description: "Make the selected text upper case, lower case (uppercase, lowercase), title case or reversed.",
      argsSchema: object({ style: { enum: Object.keys(STYLES) } }, ["style"]),
      handler: ({ style }, ctx) => edit(ctx, STYLES[style]),
    }),
  ];
}

function personTools(ask) {
  return [
    defineTool({
      name: "ask_user",
      description: "Ask the person a question in a dialog and wait for the answer.",
      timeoutMs: TEN_MINUTES,
      argsSchema: object({
        question: { type: "string", minLength: 1, maxLength: 500 },
        options: { type: "array", items: { type: "string", maxLength: 80 }, maxItems: 8, description: "Offer these; absent: free text." },
      }, ["question"]),
      handler: async ({ question, options }, ctx) => {
        const answer = await ask({ question, options }, ctx);
        return answer === null ? refuse("DECLINED", "The person did not want to answer.") : { answer };
      },
    }),
    defineTool({
      name: "fail_on_purpose",
      description: "The thing that always fails, to see how an error looks.",
      handler: () => ({
        error: { code: "ALWAYS_FAILS", message: "This tool fails every time, on purpose.", details: { hint: "Ask for something else." } },
      }),
    }),
  ];
}
