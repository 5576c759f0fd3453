// The text and the counter. A textarea shows no selection while the focus is elsewhere, so a layer behind it does.

import { $, el, plural } from "./dom.js";

export function showCounter(workspace) {
  const step = (by) => workspace.update((state) => (state.counter += by));
  $("counter-less").addEventListener("click", () => step(-1));
  $("counter-more").addEventListener("click", () => step(1));
  let shown;
  workspace.onChange(({ counter }) => {
    if (counter === shown) return;
    const output = $("counter");
    output.textContent = counter.toLocaleString("en").replace("-", "−");
    output.classList.toggle("long", Math.abs(counter) > 9999);
    if (shown !== undefined) {
      output.classList.remove("changed");
      requestAnimationFrame(() => output.classList.add("changed"));
    }
    shown = counter;
  });
}

export function showNote(workspace) {
  const note = $("note");
  const marks = $("note-marks");
  const read = () => {
    const { text, selection } = workspace.state;
    const { value, selectionStart: start, selectionEnd: end } = note;
    if (value === text && start === selection.start && end === selection.end) return;
    workspace.update((state) => Object.assign(state, { text: value, selection: { start, end } }));
  };
  note.addEventListener("input", read);
  document.addEventListener("selectionchange", () => document.activeElement === note && read());
  note.addEventListener("select", () => document.activeElement === note && read());
  note.addEventListener("scroll", () => (marks.scrollTop = note.scrollTop));

  workspace.onChange(({ text, selection: { start, end } }) => {
    if (note.value !== text) note.value = text;
    if (note.selectionStart !== start || note.selectionEnd !== end) note.setSelectionRange(start, end);
    // The last line break needs something after it to take up a line.
    marks.replaceChildren(text.slice(0, start), el("mark", {}, text.slice(start, end)), `${text.slice(end)}\u200b`);
    marks.scrollTop = note.scrollTop;
    $("note-selection").textContent = end > start ? `${plural(end - start, "character")} selected` : "Nothing selected";
  });
}
