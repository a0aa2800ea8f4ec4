// The four figures: what the model has received, what it believes, how sure it is, what it draws.
// Each has a canvas for every group of every run shown; two compared runs are side by side.

import { describe, exactValue, formOf, measure, nameVariable, paintGroup, variableAt } from "./draw.js";
import { sameVariables, writeNumber } from "./run.js";

const ROLES = [
  { role: "received", title: "What it has received", about: "theta: the messages so far" },
  { role: "believes", title: "What it believes", about: "" },
  { role: "sure", title: "How sure it is", about: "" },
  { role: "draws", title: "What it draws", about: "a draw, with the same noise" },
];

function meaning(model) {
  if (model.groups.length > 1) return "its output distribution";
  return model.groups[0].kind === "classes" ? "its most probable classes" : "the mean of its output";
}

// The variable chosen at first.
function middleOf(model) {
  const [group] = model.groups;
  const [rows, columns] = formOf(group) === "picture" ? group.shape.slice(-2) : [1, formOf(group) === "plot" ? group.count : 1];
  return { g: 0, j: Math.floor(rows / 2) * columns + Math.floor(columns / 2) };
}

// The settings in which two runs differ.
function differences(runs, which) {
  const facts = ({ model, start: { request } }) => [model.title, request.solver, `${request.steps + 1} calls`, model.labels?.[request.label], `guidance ${request.guidance}`, `seed ${request.seed}`];
  const all = runs.map(facts);
  return all[which].filter((fact, k) => fact && all.some((other) => other[k] !== fact));
}

export class Stage {
  // `hands` has the callbacks redraw() and chose(), and the brush.
  constructor(place, hands) {
    this.place = place;
    this.hands = hands;
    this.built = "";
    this.figures = [];
    this.runs = [];
    this.uncertainty = "entropy";
    this.examined = "bits";
    this.chosen = { g: 0, j: 0 };
    this.marked = null; // the variable with a frame around it, if any
    this.stroke = null;
    new ResizeObserver(() => {
      this.layout();
      hands.redraw();
    }).observe(place);
  }

  // Rebuild the figures only if the variables or the number of runs changed.
  show(runs, examining) {
    const key = JSON.stringify([runs.map((run, which) => [run.model.id, differences(runs, which)]), examining]);
    if (key === this.built) return;
    this.built = key;
    const { model } = runs[0];
    if (model !== this.runs[0]?.model) {
      this.chosen = middleOf(model);
      this.marked = null;
    }
    this.runs = runs;
    this.place.dataset.medium = model.medium;
    this.place.dataset.runs = runs.length;
    this.place.classList.toggle("stacked", runs.every((run) => run.model.medium === "text"));
    this.place.classList.toggle("rows", runs.some((run) => run.model.groups.length > 1));
    this.figures = ROLES.map(({ role, title, about }) => {
      const figure = document.createElement("figure");
      figure.dataset.role = role;
      const caption = document.createElement("figcaption");
      const name = document.createElement("h2");
      const note = document.createElement("p");
      name.textContent = title;
      note.textContent = about;
      caption.append(name, note);
      figure.append(caption);
      const canvases = [];
      const shown = { role, figure, name, note, canvases };
      const rows = Math.max(...runs.map((run) => run.model.groups.length));
      for (let g = 0; g < rows; g++) {
        for (let which = 0; which < runs.length; which++) {
          if (g < runs[which].model.groups.length) canvases.push(this.buildCanvas(shown, runs, which, g));
          else figure.append(document.createElement("div"));
        }
      }
      const both = ["entropy", "deviation"].every((each) => runs[0].start.planes.some((plane) => plane.name === each));
      if (role === "sure" && both) this.addChoice(caption, { entropy: "entropy", deviation: "deviation" }, "uncertainty");
      if (role === "draws" && examining) this.addChoice(caption, { bits: "bits", example: "example" }, "examined");
      return shown;
    });
    this.place.replaceChildren(...this.figures.map(({ figure }) => figure));
    this.layout();
  }

  buildCanvas(shown, runs, which, g) {
    const group = runs[which].model.groups[g];
    const box = document.createElement("div");
    box.className = "plate";
    if (which) box.classList.add("second");
    const label = document.createElement("span");
    label.className = "name";
    label.textContent = (runs.length > 1 && g === 0 ? ["AB"[which], ...differences(runs, which), group.name] : [group.name]).filter(Boolean).join(" · ");
    if (label.textContent) box.append(label);
    const canvas = document.createElement("canvas");
    box.append(canvas);
    shown.figure.append(box);
    const entry = { canvas, which, g, layout: null };
    canvas.setAttribute("role", "img");
    // Variables can be chosen in the second run only if they are those of the first.
    if (sameVariables(runs[which].model, runs[0].model)) this.listen(canvas, entry, shown.role);
    return entry;
  }

  addChoice(caption, choices, property) {
    const box = document.createElement("span");
    box.className = "choice";
    for (const [value, words] of Object.entries(choices)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.setAttribute("aria-pressed", String(this[property] === value));
      button.addEventListener("click", () => {
        this[property] = value;
        for (const each of box.children) each.setAttribute("aria-pressed", String(each === button));
        this.hands.redraw();
      });
      box.append(button);
    }
    caption.append(box);
  }

  layout() {
    for (const { canvases } of this.figures) {
      for (const entry of canvases) {
        const width = entry.canvas.parentElement.clientWidth;
        if (!width) continue;
        entry.layout = measure(this.runs[entry.which].model.groups[entry.g], width);
        entry.canvas.style.height = `${entry.layout.height}px`;
      }
    }
  }

  // Runs may have been replaced by newer ones of the same models.
  paint(runs, frames, pins) {
    this.runs = runs;
    const examining = runs[0].examined;
    const scale = Math.max(1e-9, ...runs.flatMap((run) => [...(run.map ?? [])])); // one for both
    for (const shown of this.figures) {
      const role = shown.role === "draws" && examining ? this.examined : shown.role;
      this.caption(shown, role, runs[0]);
      for (const entry of shown.canvases) {
        const run = runs[entry.which];
        if (!run || !entry.layout || !frames[entry.which]) continue;
        const chosen = this.marked?.g === entry.g && sameVariables(run.model, runs[0].model) ? this.marked.j : -1;
        const held = sameVariables(run.model, runs[0].model) ? pins : new Map();
        paintGroup(entry.canvas, { run, frame: frames[entry.which], g: entry.g, role, uncertainty: this.measureOf(run, entry.g), pins: held, chosen, scale }, entry.layout);
        entry.canvas.setAttribute("aria-label", this.label(shown, run, frames[entry.which], entry.g));
      }
    }
  }

  measureOf(run, g) {
    const has = (name) => run.start.planes.some((plane) => plane.name === name && plane.group === g);
    return has(this.uncertainty) ? this.uncertainty : has("entropy") ? "entropy" : "deviation";
  }

  caption(shown, role, run) {
    const usual = ROLES.find((each) => each.role === shown.role);
    const title = { bits: "Where the bits are", example: "Your example" }[role] ?? usual.title;
    if (shown.name.textContent !== title) shown.name.textContent = title;
    const legend = role === "sure" || role === "bits" ? this.scaleOf(role, run) : null;
    const note = legend ? `0 ${legend}` : { bits: "counted at the end", example: "as the model sees it", believes: meaning(run.model), sure: "variable by variable" }[role] ?? usual.about;
    if (shown.note.textContent === note) return;
    const ramp = document.createElement("i");
    ramp.className = "ramp";
    shown.note.replaceChildren(...(legend ? ["0 ", ramp, legend] : [note]));
  }

  // The upper end of the colour scale, in words, if all groups have the same.
  scaleOf(role, run) {
    const { groups } = run.model;
    if (role === "bits") return run.map ? `${Math.max(...this.runs.flatMap((each) => [...(each.map ?? [])])).toFixed(1)} bits` : null;
    const [group] = groups;
    if (groups.length > 1) return null;
    if (this.measureOf(run, 0) === "entropy" && group.entropy_max) return `${group.entropy_max.toFixed(1)} bits`;
    if (!run.start.planes.some((plane) => plane.name === "deviation")) return null;
    return Array.isArray(group.low) ? "half the range" : writeNumber((group.high - group.low) / 2);
  }

  label(shown, run, frame, g) {
    const group = run.model.groups[g];
    const name = `${shown.name.textContent}${group.name ? `, ${group.name}` : ""}`;
    if (shown.role !== "believes" || this.chosen.g !== g || !sameVariables(run.model, this.runs[0].model)) return name;
    return `${name}. ${nameVariable(run.model, g, this.chosen.j)}: ${describe(run, frame, g, this.chosen.j)}. Arrow keys move.`;
  }

  listen(canvas, entry, role) {
    const find = (event) => {
      const box = canvas.getBoundingClientRect();
      if (!entry.layout) return -1;
      return variableAt(entry.layout, this.runs[entry.which].model.groups[entry.g], event.clientX - box.left, event.clientY - box.top);
    };
    // Every cell passed since the last pointer event, so that a fast stroke leaves no gaps.
    const passed = (event) => {
      const { x, y } = this.last;
      const pieces = Math.max(1, Math.ceil(Math.hypot(event.clientX - x, event.clientY - y) / (entry.layout.cellWidth / 2)));
      this.last = { x: event.clientX, y: event.clientY };
      return Array.from({ length: pieces }, (_, k) => {
        const part = (k + 1) / pieces;
        return find({ clientX: x + (event.clientX - x) * part, clientY: y + (event.clientY - y) * part });
      });
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      let j = find(event);
      if (j < 0) return;
      this.last = { x: event.clientX, y: event.clientY };
      if (this.hands.brush.painting) {
        canvas.setPointerCapture(event.pointerId);
        event.preventDefault();
      }
      this.stroke = entry;
      // Another click on a pixel shows its next channel.
      const { count } = this.runs[entry.which].model.groups[entry.g];
      const size = count / entry.layout.channels;
      if (!this.hands.brush.painting && this.chosen.g === entry.g && this.chosen.j % size === j && this.marked) j = (this.chosen.j + size) % count;
      this.choose(entry.g, j);
      this.hands.brush.touch(this.runs[entry.which], entry.g, j, true);
      this.figures.find((each) => each.role === "believes").canvases[this.figures[0].canvases.findIndex((each) => each.which === entry.which && each.g === entry.g)].canvas.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.stroke === entry && this.hands.brush.painting) {
        for (const j of passed(event)) {
          if (j < 0 || (j === this.chosen.j && entry.g === this.chosen.g)) continue;
          this.choose(entry.g, j);
          this.hands.brush.touch(this.runs[entry.which], entry.g, j, false);
        }
      } else if (!this.stroke) {
        const j = find(event);
        const size = this.runs[entry.which].model.groups[entry.g].count / (entry.layout?.channels ?? 1);
        const same = this.chosen.g === entry.g && this.chosen.j % size === j;
        this.point(j < 0 ? null : same ? this.chosen : { g: entry.g, j });
      }
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (this.stroke = null));
    canvas.addEventListener("pointerleave", () => this.point(null));
    if (role !== "believes") return;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application"); // arrow keys move in it
    canvas.classList.add("cursor");
    canvas.addEventListener("focus", () => {
      if (this.chosen.g !== entry.g) this.choose(entry.g, 0);
    });
    canvas.addEventListener("keydown", (event) => {
      const group = this.runs[entry.which].model.groups[entry.g];
      const { columns, channels } = entry.layout;
      const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (move && !event.ctrlKey && !event.metaKey && !event.altKey && group.count > 1) {
        const size = group.count / channels;
        const j = (this.chosen.j % size) + move;
        if (j >= 0 && j < size) this.choose(entry.g, j);
        event.preventDefault();
        event.stopPropagation();
      } else if (this.hands.brush.typed(group, entry.g, this.chosen.j, event)) {
        event.preventDefault();
        event.stopPropagation();
      }
    });
  }

  choose(g, j) {
    this.chosen = this.marked = { g, j };
    this.hands.chose();
  }

  // The pointer is over a variable, or over none.
  point(variable) {
    if (variable?.g === this.marked?.g && variable?.j === this.marked?.j) return;
    this.marked = variable ?? this.chosen;
    this.hands.redraw();
  }

  // The chosen variable in words, for screen readers.
  speak(run, frame) {
    const { g, j } = this.chosen;
    const exact = run.end?.values && frame.step === run.start.request.steps ? ` Drawn: ${exactValue(run.model, run.end.values, run.model.groups[g].start + j)}.` : "";
    return `${nameVariable(run.model, g, j)}: ${describe(run, frame, g, j)}.${exact}`;
  }
}
