// Drawing a group of variables into a canvas. Four forms serve all data: a picture of cells, letters
// in lines, a plot of numbers, and a single named variable. Five roles determine what is drawn.

import { palette, rampColour } from "./palette.js";
import { drawnValue, fractionOf, ownUnits, tallestOf, writeClass, writeNumber, writeValue } from "./run.js";

const FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "Segoe UI Mono", "Roboto Mono", "DejaVu Sans Mono", monospace';
const scratch = document.createElement("canvas");

// Spaces are made visible in beliefs and messages, but not in samples.
function letterOf(group, k, role) {
  const letter = writeClass(group, k, false);
  return letter === " " && role !== "draws" && role !== "example" ? "·" : letter;
}

export function formOf(group) {
  if (group.count === 1) return "single";
  if (group.kind === "classes") return "letters";
  const [height, width] = group.shape.slice(-2);
  return group.shape.length > 1 && height > 1 && width > 1 ? "picture" : "plot";
}

// Where the variables of a group lie in a canvas of this width.
export function measure(group, width) {
  const form = formOf(group);
  if (form === "picture") {
    const [rows, columns] = group.shape.slice(-2);
    const cell = width / columns;
    return { form, columns, rows, channels: group.count / (rows * columns), cellWidth: cell, cellHeight: cell, width, height: cell * rows };
  }
  if (form === "letters") {
    const grid = group.shape.length > 1 ? group.shape[group.shape.length - 1] : 0;
    const columns = grid || Math.min(group.count, Math.max(8, Math.floor(width / (width < 500 ? 11.4 : 14))));
    const cellWidth = Math.min(width / columns, grid ? 30 : 22);
    const cellHeight = cellWidth * 1.9;
    const rows = Math.ceil(group.count / columns);
    return { form, columns, rows, channels: 1, cellWidth, cellHeight, width, height: rows * cellHeight };
  }
  const height = form === "single" ? 40 : Math.round(Math.min(240, Math.max(120, width * 0.6)));
  return { form, columns: group.count, rows: 1, channels: 1, cellWidth: width / group.count, cellHeight: height, width, height };
}

// The index in the group of the variable under a point, or -1; the first channel of a colour.
export function variableAt(layout, group, x, y) {
  const column = Math.floor(x / layout.cellWidth);
  const row = Math.floor(y / layout.cellHeight);
  if (column < 0 || column >= layout.columns || row < 0 || row >= layout.rows) return -1;
  const j = row * layout.columns + column;
  return j < group.count / layout.channels ? j : -1;
}

function cellOf(layout, j) {
  const place = j % (layout.columns * layout.rows);
  return [(place % layout.columns) * layout.cellWidth, Math.floor(place / layout.columns) * layout.cellHeight];
}

// A cleared context in CSS pixels, at the resolution of the screen.
export function openCanvas(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(w / width, 0, 0, h / height, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// What the role shows for each variable, as a number from 0 to 1; null if there is none.
function fractionsOf(view) {
  const { run, frame, g, role, scale } = view;
  const group = run.model.groups[g];
  const bytes = { received: "input", believes: "mean", sure: view.uncertainty }[role];
  if (bytes) {
    const plane = run.plane(frame, bytes, g);
    return plane && Float32Array.from(plane.values, (value) => value / 255);
  }
  if (role === "draws") {
    const plane = run.plane(frame, "sample", g);
    return plane && Float32Array.from(plane.values, (_, j) => drawnValue(group, plane, j));
  }
  if (role === "bits" && run.map) {
    return Float32Array.from(run.map.subarray(group.start, group.start + group.count), (bits) => bits / scale);
  }
  if (role === "example" && run.end?.values) {
    const values = run.end.values.slice(group.start, group.start + group.count);
    return Float32Array.from(values, (value, j) => (group.kind === "classes" ? value : fractionOf(group, j, value)));
  }
  return null;
}

function paintPicture(context, view, layout) {
  const fractions = fractionsOf(view);
  if (!fractions) return;
  const { columns, rows, channels } = layout;
  const size = columns * rows;
  const coloured = view.role === "sure" || view.role === "bits";
  const ramp = palette().ramp;
  scratch.width = columns;
  scratch.height = rows;
  const small = scratch.getContext("2d");
  const image = small.createImageData(columns, rows);
  for (let place = 0; place < size; place++) {
    const at = place * 4;
    if (coloured) {
      let sum = 0;
      for (let c = 0; c < channels; c++) sum += fractions[c * size + place];
      const v = Math.max(0, Math.min(255, Math.round((sum / channels) * 255))) * 3;
      for (let c = 0; c < 3; c++) image.data[at + c] = ramp[v + c];
    } else {
      for (let c = 0; c < 3; c++) image.data[at + c] = fractions[(channels >= 3 ? c * size : 0) + place] * 255;
    }
    image.data[at + 3] = 255;
  }
  small.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(scratch, 0, 0, layout.width, layout.height);
}

function paintLetters(context, view, layout) {
  const { run, frame, g, role } = view;
  const group = run.model.groups[g];
  const colours = palette();
  const fractions = fractionsOf(view);
  const leading = run.leading(frame, g, role === "received");
  // Letters fill their cells; the few symbols that are longer than most are squeezed.
  const lengths = (group.symbols ?? [String(group.K - 1)]).map((symbol) => symbol.length).sort((a, b) => a - b);
  context.font = `${(layout.cellWidth * 1.5) / lengths[lengths.length >> 1]}px ${MONO}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const exists = Math.min(group.count, run.start.exists - group.start);
  for (let j = 0; j < exists; j++) {
    const [x, y] = cellOf(layout, j);
    const pinned = view.pins.has(group.start + j);
    let [k, strength] = [leading?.k[j] ?? -1, leading?.p[j] ?? 0];
    if (role === "draws" || role === "example") [k, strength] = fractions ? [fractions[j], 1] : [-1, 0];
    context.fillStyle = pinned ? colours.accent : colours.ink;
    if (role === "sure" || role === "bits") {
      if (!fractions) continue;
      context.fillStyle = rampColour(fractions[j]);
      context.fillRect(x, y, layout.cellWidth + 0.3, layout.cellHeight - 1);
      if (role === "bits" && run.end?.values) k = run.end.values[group.start + j];
      context.fillStyle = fractions[j] > 0.55 ? colours.plate : pinned ? colours.accent : colours.ink;
      strength = 0.65;
    }
    // Where nothing is known all classes are alike, and no letter should stand out.
    const chance = 1 / group.K;
    context.globalAlpha = role === "received" || role === "believes" ? Math.max(0.05, (strength - chance) / (1 - chance)) : strength;
    if (k >= 0) context.fillText(letterOf(group, k, role), x + layout.cellWidth / 2, y + layout.cellHeight * 0.5, layout.cellWidth);
    context.globalAlpha = 1;
    if (pinned) {
      context.fillStyle = colours.accent;
      context.fillRect(x + 1, y + layout.cellHeight - 3, layout.cellWidth - 2, 2);
    }
  }
}

function paintPlot(context, view, layout) {
  const { run, frame, g, role } = view;
  const group = run.model.groups[g];
  const colours = palette();
  const fractions = fractionsOf(view);
  const [top, bottom] = [8, layout.height - 8];
  const y = (fraction) => bottom - Math.max(-0.02, Math.min(1.02, fraction)) * (bottom - top);
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  for (const fraction of role === "sure" || role === "bits" ? [0] : [0, 0.5, 1]) {
    context.moveTo(0, Math.round(y(fraction)) + 0.5);
    context.lineTo(layout.width, Math.round(y(fraction)) + 0.5);
  }
  context.stroke();
  if (!fractions) return;
  const deviation = role === "believes" ? run.plane(frame, "deviation", g) : null;
  const radius = Math.max(1.5, Math.min(4, layout.cellWidth * 0.3));
  for (let j = 0; j < group.count; j++) {
    const x = (j + 0.5) * layout.cellWidth;
    const colour = view.pins.has(group.start + j) ? colours.accent : colours.ink;
    context.fillStyle = colour;
    if (role === "sure" || role === "bits") {
      const wide = Math.max(1, layout.cellWidth - 2);
      context.fillStyle = view.pins.has(group.start + j) ? colours.accent : rampColour(0.35 + 0.65 * fractions[j]);
      context.fillRect(x - wide / 2, y(fractions[j]), wide, bottom - y(fractions[j]));
      continue;
    }
    if (deviation) {
      const spread = (deviation.values[j] / 255) * 0.5;
      context.fillStyle = rampColour(0.55);
      context.fillRect(x - Math.max(0.75, radius / 2), y(fractions[j] + spread), Math.max(1.5, radius), y(fractions[j] - spread) - y(fractions[j] + spread));
      context.fillStyle = colour;
    }
    context.beginPath();
    context.arc(x, y(fractions[j]), radius, 0, 2 * Math.PI);
    context.fill();
  }
}

// The probabilities of one variable over its classes, levels or range, relative to the highest.
export function spreadOf(run, frame, g, j, ofTheta) {
  const group = run.model.groups[g];
  const all = run.plane(frame, ofTheta ? "input_p" : "p", g);
  if (all) return Float32Array.from(all.values.subarray(j * all.per, (j + 1) * all.per), (value) => value / 255);
  const mean = run.plane(frame, ofTheta ? "input" : "mean", g);
  if (!mean || group.kind === "classes" || ofTheta) return null;
  const deviation = run.plane(frame, "deviation", g);
  const sigma = deviation ? Math.max(0.004, (deviation.values[j] / 255) * 0.5) : 0.004;
  const bins = 64;
  const spread = Float32Array.from({ length: bins }, (_, k) => Math.exp(-(((k + 0.5) / bins - mean.values[j] / 255) ** 2) / (2 * sigma * sigma)));
  const sum = spread.reduce((total, value) => total + value, 0) || 1;
  return spread.map((value) => value / sum);
}

function paintSingle(context, view, layout) {
  const { run, frame, g, role } = view;
  const group = run.model.groups[g];
  const colours = palette();
  const pinned = view.pins.has(group.start);
  const [width, height] = [layout.width, layout.height];
  const room = Math.round(width * 0.56);
  let words = "";
  context.textBaseline = "middle";
  context.fillStyle = pinned ? colours.accent : colours.ink;
  if (role === "sure" || role === "bits") {
    const fractions = fractionsOf(view);
    if (!fractions) words = role === "sure" ? "a point" : "";
    else {
      context.fillStyle = colours.line;
      context.fillRect(0, height / 2 - 3, room, 6);
      context.fillStyle = rampColour(0.35 + 0.65 * fractions[0]);
      context.fillRect(0, height / 2 - 3, Math.max(1, room * Math.min(1, fractions[0])), 6);
      if (role === "bits") words = `${writeNumber(run.map[group.start])} bits`;
      else if (view.uncertainty === "entropy") words = `${(fractions[0] * group.entropy_max).toFixed(2)} bits`;
      else words = `± ${writeNumber((fractions[0] * (ownUnits(group, 0, 1) - ownUnits(group, 0, 0))) / 2)}`;
    }
  } else if (role === "draws" || role === "example") {
    const fractions = fractionsOf(view);
    if (fractions) words = group.kind === "classes" ? writeClass(group, fractions[0], true) : group.kind === "levels" ? String(Math.round(fractions[0] * (group.K - 1))) : writeNumber(ownUnits(group, 0, fractions[0]));
    context.font = `500 15px ${FONT}`;
    context.fillStyle = pinned ? colours.accent : colours.ink;
    context.fillText(words, 0, height / 2, width);
    return;
  } else {
    const spread = spreadOf(run, frame, g, 0, role === "received");
    const mean = run.plane(frame, role === "received" ? "input" : "mean", g);
    context.font = `12px ${FONT}`;
    context.fillStyle = colours.line;
    context.fillRect(0, height - 7, room, 1);
    context.fillStyle = pinned ? colours.accent : role === "received" ? colours.soft : colours.ink;
    if (spread) {
      const wide = room / spread.length;
      const tallest = tallestOf(group, spread);
      spread.forEach((p, k) => context.fillRect(k * wide + (wide > 4 ? 1 : 0), height - 7 - (p / tallest) * (height - 14), Math.max(0.8, wide - (wide > 4 ? 2 : 0)), (p / tallest) * (height - 14)));
    } else if (mean) {
      context.fillRect((mean.values[0] / 255) * (room - 2), 8, 2, height - 15);
    }
    if (group.kind === "classes") {
      const leading = run.leading(frame, g, role === "received");
      if (leading) {
        words = `${writeClass(group, leading.k[0], true)}, ${Math.round(100 * leading.p[0])}%`;
        if (context.measureText(words).width > width - room - 8) words = words.replace(/, \d+%$/, "");
      }
    } else if (mean) words = writeNumber(ownUnits(group, 0, mean.values[0] / 255));
  }
  context.font = `12px ${FONT}`;
  context.fillStyle = colours.soft;
  context.fillText(words, room + 8, height / 2, width - room - 8);
}

const PAINT = { picture: paintPicture, letters: paintLetters, plot: paintPlot, single: paintSingle };

export function paintGroup(canvas, view, layout) {
  const context = openCanvas(canvas, layout.width, layout.height);
  PAINT[layout.form](context, view, layout);
  if (view.role === "sure" && layout.form !== "single" && !view.run.plane(view.frame, view.uncertainty, view.g)) {
    context.font = `13px ${FONT}`;
    context.fillStyle = palette().soft;
    context.textAlign = "center";
    context.fillText("each belief is a point", layout.width / 2, layout.height / 2);
  }
  const group = view.run.model.groups[view.g];
  const colours = palette();
  if (layout.form === "picture") {
    context.strokeStyle = colours.accent;
    context.lineWidth = Math.max(1, Math.min(3, layout.cellWidth / 12));
    const inset = context.lineWidth / 2;
    for (const i of view.pins.keys()) {
      const j = i - group.start;
      if (j < 0 || j >= group.count) continue;
      const [x, y] = cellOf(layout, j);
      context.strokeRect(x + inset, y + inset, layout.cellWidth - 2 * inset, layout.cellHeight - 2 * inset);
    }
  } else if (layout.form === "single" && view.pins.has(group.start) && view.role !== "draws") {
    context.fillStyle = colours.accent;
    context.fillRect(0, 4, 2, layout.height - 8);
  }
  if (view.chosen >= 0 && layout.form === "plot") {
    context.globalAlpha = 0.16;
    context.fillStyle = colours.accent;
    const wide = Math.max(6, layout.cellWidth);
    context.fillRect((view.chosen + 0.5) * layout.cellWidth - wide / 2, 0, wide, layout.height);
    context.globalAlpha = 1;
  } else if (view.chosen >= 0 && layout.form !== "single") {
    const [x, y] = cellOf(layout, view.chosen);
    context.lineWidth = 3;
    context.strokeStyle = colours.plate;
    context.strokeRect(x + 0.5, y + 0.5, layout.cellWidth - 1, layout.cellHeight - 1);
    context.lineWidth = 1.5;
    context.strokeStyle = colours.ink;
    context.strokeRect(x + 0.5, y + 0.5, layout.cellWidth - 1, layout.cellHeight - 1);
  }
}

// The description of one variable, for screen readers and above its bars.
export function describe(run, frame, g, j) {
  const group = run.model.groups[g];
  const words = [];
  if (group.kind === "classes") {
    const leading = run.leading(frame, g, false);
    if (leading) words.push(`${writeClass(group, leading.k[j], true)} with probability ${leading.p[j].toFixed(2)}`);
  } else {
    const mean = run.plane(frame, "mean", g);
    const deviation = run.plane(frame, "deviation", g);
    const range = group.kind === "levels" ? group.K - 1 : ownUnits(group, j, 1) - ownUnits(group, j, 0);
    const low = group.kind === "levels" ? 0 : ownUnits(group, j, 0);
    if (mean) words.push(`${writeNumber(low + (mean.values[j] / 255) * range)}${deviation ? ` ± ${writeNumber((deviation.values[j] / 255) * range * 0.5)}` : ", a point"}`);
  }
  const entropy = run.plane(frame, "entropy", g);
  if (entropy) words.push(`${((entropy.values[j] / 255) * group.entropy_max).toFixed(2)} bits of uncertainty`);
  return words.join(" · ");
}

export function nameVariable(model, g, j) {
  const group = model.groups[g];
  const form = formOf(group);
  const name = group.name ? `${group.name}, ` : "";
  if (form === "single") return group.name || "The variable";
  if (form === "picture") {
    const [rows, columns] = group.shape.slice(-2);
    const place = j % (rows * columns);
    const channel = group.count === 3 * rows * columns ? `, ${["red", "green", "blue"][Math.floor(j / (rows * columns))]}` : "";
    return `${name || "Pixel "}row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}${channel}`;
  }
  return `${name}${group.kind === "classes" && model.medium === "text" ? "letter" : "number"} ${j + 1}`.replace(/^./, (letter) => letter.toUpperCase());
}

export function exactValue(model, values, i) {
  const { groups } = model;
  const group = groups.find((each) => i >= each.start && i < each.start + each.count);
  return writeValue(group, values[i]);
}
