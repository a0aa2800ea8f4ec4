// The page: it receives messages, keeps the runs, moves the time, and sends requests.

import { Ask } from "./ask.js";
import { Brush } from "./brush.js";
import { describe, formOf, nameVariable, spreadOf } from "./draw.js";
import { decodePicture, readPicture, readValues, saveFile } from "./example.js";
import { Bars } from "./inspect.js";
import { forgetPalette } from "./palette.js";
import { Pins } from "./pins.js";
import { Live, readFilm } from "./protocol.js";
import { MANY, Run, aboutData, ownUnits, sameVariables, writeNumber } from "./run.js";
import { Stage } from "./stage.js";
import { chartTop, paintTimeline } from "./timeline.js";

const find = (id) => document.getElementById(id);
const film = find("film");
const SECONDS = 5; // from t = 0 to 1 at speed 1
const PATIENCE = 80; // milliseconds between requests while the user drags or types
const PLAY = "M5 3l12 7-12 7z";
const PAUSE = "M5 3h4v14H5zM11 3h4v14h-4z";

const page = {
  live: null,
  ask: null,
  hello: null,
  recorded: [], // the runs of a film
  panes: [0, 1].map((index) => ({ index, run: null, next: null, wanted: -1, request: null })),
  comparing: false,
  whose: 0, // the pane whose files and command line are offered
  t: 0,
  goal: 0, // where the slider was put, if the frames have not arrived yet
  playing: false,
  count: 0, // runs requested
  top: 1, // upper end of the chart
  example: null, // what is examined: null while generating
  seen: null, // the example on the stage, restored if another one is refused
  restart: false, // whether the next run plays from its beginning
  bitmap: null, // a picture waiting to be cropped
  waiting: 0,
};

const pins = new Pins(() => {
  showPins();
  askSoon();
});
const brush = new Brush(find, pins, { editable, begin: beginStroke, choose: (g, j) => stage.choose(g, j), notice });
const stage = new Stage(find("stage"), { redraw, chose, brush });
const bars = new Bars(find("bars"), (value) => {
  const { g, j } = stage.chosen;
  if (editable()) brush.pin([shownModel().groups[g].start + j], [value]);
});

// ---------------------------------------------------------------- messages

function receive(header, body) {
  if (header.kind === "hello") return begin(header);
  if (header.kind === "file") return saveFile(header.name, body);
  if (header.kind === "error") return refused(header);
  const pane = page.panes[header.pane];
  if (header.kind === "start") {
    const run = new Run(header, page.hello.models.find((model) => model.id === header.request.model));
    if (film) page.recorded.push(run);
    else if (header.run === pane.wanted) pane.next = run;
    return undefined;
  }
  const run = film ? page.recorded[page.recorded.length - 1] : [pane.next, pane.run].find((each) => each?.id === header.run);
  if (!run || (!film && run.id !== pane.wanted)) return undefined;
  if (header.kind === "frame") run.add(header, body);
  if (header.kind === "end") run.finish(header, body);
  if (!film) promote(pane);
  return undefined;
}

// A new run is shown once it has reached the current time, so that nothing flickers.
function promote(pane) {
  const { next } = pane;
  if (next?.frames.length && page.restart) {
    page.restart = false;
    page.t = 0;
    page.top = 1;
    play(true);
  }
  if (next?.frames.length && (!pane.run || next.receivedUntil >= page.t - 1e-9)) {
    pane.run = next;
    pane.next = null;
    page.seen = page.example;
    changed = true;
  }
  if (pane.run?.end) changed = true; // the sample and the map of bits have arrived
  if (!page.waiting && usedPanes().every((each) => each.run?.id === each.wanted && each.run.end)) find("stage").ariaBusy = "false";
  drawSoon();
}

// A request that the server refuses leaves the page as it was.
function refused({ pane, run, message }) {
  notice(message);
  if (page.panes[pane]?.wanted !== run) return;
  page.restart = false;
  page.example = page.seen;
  find("stage").ariaBusy = "false";
  if (shownRuns().length || !pins.now.size) return;
  pins.forget(); // they came from the address, and there is nothing to go back to
  showPins();
  request();
  notice(`${message} The pins in the address are ignored.`);
}

// The first run plays by itself; users who prefer reduced motion see its end instead.
function playFirst() {
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) return play(true);
  page.goal = 1;
  return redraw();
}

function begin(hello) {
  page.hello = hello;
  document.body.classList.add(hello.live ? "live" : "recorded");
  if (!hello.live) return;
  find("notice").hidden = true;
  page.ask = new Ask(find, hello);
  pins.forget();
  find("since").checked = false;
  for (const [i, value] of page.ask.recall()) pins.now.set(i, value);
  changeModel();
  playFirst();
  request();
}

function beginFilm() {
  const names = page.recorded.map(({ model, start: { request } }) => [model.title, model.labels?.[request.label], `seed ${request.seed}`].filter(Boolean).join(" · "));
  const alike = (name) => names.filter((other) => other === name).length;
  for (const id of ["film-a", "film-b"]) {
    const seen = {};
    find(id).append(...names.map((name, k) => {
      seen[name] = (seen[name] ?? 0) + 1;
      return new Option(alike(name) > 1 ? `${name} · example ${seen[name]} of ${alike(name)}` : name, k);
    }));
    on(id, "change", showRecorded);
  }
  find("film-b").value = page.recorded.length - 1;
  find("compare").hidden = page.recorded.length < 2;
  find("stage").ariaBusy = "false";
  showRecorded();
  playFirst();
}

function factsOf({ model, start: { request } }) {
  const facts = { Model: model.title, Solver: request.solver, "Network calls": request.steps + 1, Seed: request.seed };
  if (model.labels && typeof request.label === "number") Object.assign(facts, { Label: model.labels[request.label], Guidance: request.guidance });
  if (request.pins?.i.length) facts.Pinned = `${request.pins.i.length} of ${model.D}`;
  return facts;
}

function showRecorded() {
  page.panes[0].run = page.recorded[find("film-a").value];
  page.panes[1].run = page.comparing ? page.recorded[find("film-b").value] : null;
  find("versus").hidden = !page.comparing;
  document.body.classList.toggle("comparing", page.comparing);
  const { model } = page.panes[0].run;
  find("about").textContent = aboutData(model);
  const facts = shownRuns().map(factsOf);
  find("how").replaceChildren(...Object.keys(Object.assign({}, ...facts)).flatMap((name) => [name, ...facts.map((each) => each[name] ?? "–")].map((words, k) => {
    const cell = document.createElement(k ? "dd" : "dt");
    cell.classList.toggle("second", k === 2);
    cell.textContent = words;
    return cell;
  })));
  page.top = 1;
  redraw();
}

// ---------------------------------------------------------------- requests

function request() {
  clearTimeout(page.waiting);
  page.waiting = 0;
  find("stage").ariaBusy = "true";
  if (find("reconnect").hidden) find("notice").hidden = true; // it was about an earlier request
  clearTimeout(page.remembering);
  page.remembering = setTimeout(() => page.ask.remember(pins.now), 400); // browsers limit how often
  for (const pane of usedPanes()) {
    const settings = page.ask.settings(pane.index);
    const model = pane.index ? page.ask.second : page.ask.model;
    pane.wanted = ++page.count;
    const head = { run: pane.wanted, pane: pane.index };
    if (page.example) {
      pane.request = { do: "examine", ...head, model: settings.model, steps: settings.steps, seed: settings.seed, label: settings.label, ...page.example };
    } else {
      const held = sameVariables(model, page.ask.model) ? pins.message() : { i: [], v: [] };
      const since = held.i.length ? sinceWhen() : 0;
      pane.request = { do: "generate", ...head, ...settings, particles: held.i.length ? settings.particles : 1, pins: held, since };
    }
    page.live.send(pane.request);
  }
}

function askSoon() {
  if (film || page.waiting) return;
  find("stage").ariaBusy = "true";
  page.waiting = setTimeout(request, PATIENCE);
}

function generate() {
  page.example = null;
  again();
}

// Play from the beginning, with the current settings.
function again() {
  page.restart = true;
  request();
}

function download(what) {
  const pane = page.panes[whose()];
  if (!pane.run || !pane.request) return;
  page.live.send({ do: "download", run: ++page.count, pane: pane.index, what, request: pane.request });
  notice(`Preparing the ${what === "known" ? "known values" : what}.`, 2500);
}

// ---------------------------------------------------------------- what is shown

function usedPanes() {
  return page.panes.slice(0, page.comparing ? 2 : 1);
}

function shownRuns() {
  return usedPanes().map((pane) => pane.run).filter(Boolean);
}

// The pane whose files and command line are offered: A, or B if that was chosen.
function whose() {
  return shownRuns().length > 1 ? page.whose : 0;
}

function shownModel() {
  return shownRuns()[0]?.model ?? page.ask?.model;
}

function heldPins(run) {
  if (!film && !run.examined && run.model === page.ask.model) return pins.now;
  const { i, v } = run.start.request.pins ?? { i: [], v: [] };
  return new Map(i.map((place, k) => [place, v[k]]));
}

// Draw everything again; `drawSoon` alone is enough for a new time or new points of the chart.
function redraw() {
  changed = true;
  drawSoon();
}

let drawing = 0;
function drawSoon() {
  if (!drawing) drawing = requestAnimationFrame(draw);
}

let before = 0;
let changed = true;
let painted = []; // the frames on the stage
function draw(now) {
  drawing = 0;
  const runs = shownRuns();
  if (!runs.length || !runs[0].frames.length) {
    before = 0;
    return;
  }
  const arrived = Math.min(...runs.map((run) => run.receivedUntil));
  if (page.playing) {
    if (before) page.t = Math.min(arrived, page.t + ((now - before) / 1000 / SECONDS) * Number(find("speed").value));
    before = now;
    if (page.t >= 1) play(false);
    else drawSoon();
  } else before = 0;
  if (!page.playing && page.goal > page.t) page.t = runs[0].at(Math.min(page.goal, arrived)).t;
  const frames = runs.map((run) => run.at(page.t));
  page.top = chartTop(runs, page.top);
  paintTimeline(find("curve"), runs, page.t, page.top * 1.04);
  showNumbers(runs, frames);
  if (changed || frames.some((frame, k) => frame !== painted[k])) {
    stage.show(runs, runs[0].examined);
    stage.paint(runs, frames, heldPins(runs[0]));
    if (!film) brush.show(runs[0].model, stage.chosen.g);
    showClosely(runs, frames);
  }
  changed = false;
  painted = frames;
  document.body.classList.add("ready");
}

function write(id, words) {
  if (find(id).textContent !== words) find(id).textContent = words;
}

// A command line whose options are not broken across lines.
function optionsOf(command) {
  return command.split(/ (?=--)/).flatMap((words, k) => {
    const piece = document.createElement("span");
    piece.textContent = words;
    return k ? [" ", piece] : [piece];
  });
}

function showNumbers(runs, frames) {
  const [frame] = frames;
  const { start, end } = runs[0];
  const examining = runs[0].examined;
  const each = (write) => runs.map((run, k) => write(run, frames[k])).join(" · ");
  const bits = ({ bits }) => (typeof bits === "number" ? bits.toFixed(1) : "–");
  find("bits-b").hidden = runs.length < 2;
  const counted = typeof frame.bits === "number";
  write("bits", counted ? bits(frame) : page.t.toFixed(2));
  if (runs.length > 1) write("bits-b", counted ? bits(frames[1]) : "");
  find("pin-panel").inert = examining;
  const unsure = typeof frame.entropy === "number" ? `, ${each((_, { entropy }) => entropy?.toFixed(1) ?? "–")} still uncertain` : "";
  const ended = examining && runs.every((run) => run.end);
  const loss = ended ? `, of about ${each((run) => run.end.bits?.toFixed(0) ?? "∞")} in all: ${each((run) => (run.end.bits === null ? "∞" : (run.end.bits / run.start.exists).toFixed(2)))} per variable` : "";
  const unit = counted ? (examining ? "bits sent" : "bits received") : "the time t";
  write("unsure", unit + (examining ? loss : unsure));
  // The time at which the network was called: just above 0 for a fast solver's first call.
  write("clock", runs.map((run, k) => `${runs.length > 1 ? `${"AB"[k]}: ` : ""}t = ${frames[k].t.toFixed(3)} · call ${frames[k].step + 1} of ${run.start.request.steps + 1}`).join("\n"));
  const slider = find("t");
  slider.value = page.t;
  slider.setAttribute("aria-valuetext", `t ${page.t.toFixed(2)}, step ${frame.step} of ${start.request.steps}${typeof frame.bits === "number" ? `, ${bits(frame)} bits received` : ""}`);
  const badge = find("badge");
  const words = examining ? "your example" : start.request.since > 0 ? "approximate" : film ? "recording" : "";
  badge.hidden = !words;
  write("badge", words);
  const { command, why, needs } = runs[whose()].start;
  find("whose").hidden = runs.length < 2;
  [...find("whose").querySelectorAll("button")].forEach((button, k) => button.setAttribute("aria-pressed", String(k === whose())));
  if (find("command").textContent !== (command ?? "")) find("command").replaceChildren(...optionsOf(command ?? ""));
  find("command").parentElement.hidden = !command;
  const files = needs?.length ? `It reads ${needs.join(" and ")}: get them with “Known values”.` : "";
  write("why", why ?? files);
  find("why").hidden = !why && !files;
  find("take-it").hidden = film && !command && !why;
  document.querySelector("[data-download=known]").hidden = !needs?.length;
  find("examine-sample").disabled = !end?.values;
  write("examine-sample", runs.length > 1 ? "Examine A’s sample" : "Examine this sample");
  find("generate-again").hidden = !examining;
  document.querySelector("[data-download=sample]").disabled = examining; // the user has it already
}

function showClosely(runs, frames) {
  const [run, second] = runs;
  const { g, j } = stage.marked ?? stage.chosen;
  const group = run.model.groups[g];
  const both = second && sameVariables(second.model, run.model);
  write("closely-name", nameVariable(run.model, g, j));
  write("closely-what", `${second ? "A: " : ""}${describe(run, frames[0], g, j)}` || "\u00a0");
  find("closely-what-b").hidden = !second;
  if (second) write("closely-what-b", `B: ${both ? describe(second, frames[1], g, j) : "has different variables"}`);
  const canPin = editable();
  bars.show(run, frames[0], g, j, heldPins(run).get(group.start + j), canPin, both ? spreadOf(second, frames[1], g, j, false) : null);
  const many = group.kind === "classes" && group.K > MANY && group.symbols;
  const range = many ? [group.symbols[0], group.symbols.at(-1)] : group.kind === "classes" ? ["", ""] : group.kind === "levels" ? ["dark", "bright"] : [0, 1].map((end) => writeNumber(ownUnits(group, j, end)));
  write("bars-low", range[0]);
  write("bars-high", range[1]);
  const colour = formOf(group) === "picture" && group.shape.length === 3 && group.shape[0] === 3;
  const hint = formOf(group) === "letters" ? "Click a letter and type to pin it, or click a bar to pin its class." : colour ? "Click a bar to pin its value, or the pixel again for its next channel." : "Click a bar to pin that value.";
  write("closely-hint", canPin ? hint : "\u00a0");
}

// All pins hold from the time of the first one, so that everything before it stays the same.
function beginStroke() {
  if (!pins.now.size) page.since = page.t;
}

function sinceWhen() {
  return find("since").checked && page.ask.settings(0).particles === 1 ? page.since ?? 0 : 0;
}

function disable(name, why) {
  find(name).disabled = Boolean(why);
  find(name).title = document.querySelector(`label[for=${name}]`).title = why;
}

function showPins() {
  const { size } = pins.now;
  const { particles } = page.ask.settings(0);
  find("unpin").disabled = !size;
  find("undo").disabled = !pins.past.length;
  const ancestral = size && particles > 1 ? "Particles need the ancestral solver." : "";
  disable("solver", ancestral);
  find("solver-b").disabled = Boolean(ancestral);
  const early = size && !find("since").checked ? "The pins hold from the beginning: unpin all of them to continue from the middle." : "";
  disable("since", particles > 1 ? "Particles cannot continue from the middle." : early);
  const when = sinceWhen() > 0 ? ` from t = ${sinceWhen().toFixed(3)} on` : "";
  write("pin-what", size ? `${size} of ${page.ask.model.D} variables held${when}; the others follow. ${ancestral}`.trim() : "Hold variables fixed; all others follow.");
}

function notice(words, milliseconds) {
  const box = find("notice");
  box.firstElementChild.textContent = words;
  find("reconnect").hidden = true;
  box.hidden = false;
  clearTimeout(notice.timer);
  if (milliseconds) notice.timer = setTimeout(() => (box.hidden = true), milliseconds);
}

// ---------------------------------------------------------------- time

function play(on) {
  if (on && page.t >= 1 - 1e-9) page.t = 0;
  page.playing = on;
  page.goal = 0;
  find("play-icon").setAttribute("d", on ? PAUSE : PLAY);
  find("play").setAttribute("aria-label", on ? "Pause" : "Play");
  redraw();
}

function step(by) {
  const [run] = shownRuns();
  if (!run) return;
  play(false);
  const place = Math.max(0, Math.min(run.frames.length - 1, run.place(page.t) + by));
  page.t = run.frames[place].t;
  redraw();
}

// ---------------------------------------------------------------- choosing

function chose() {
  const [run] = shownRuns();
  if (run) find("spoken").textContent = page.playing ? "" : stage.speak(run, run.at(page.t));
  redraw();
}

// Pins can change while a live generation of the model in the controls is shown.
function editable() {
  const [run] = shownRuns();
  return Boolean(!film && !page.example && run && run.model === page.ask.model);
}

function changeModel() {
  const { model } = page.ask;
  page.example = null;
  page.since = 0;
  find("own-picture").hidden = model.medium !== "image";
  find("own-text").hidden = model.medium === "image";
  find("examine").hidden = model.medium === "image";
  const names = model.groups.map(({ name, count }) => (count > 1 ? `${name} (${count} values)` : name)).join(", ");
  const length = model.longest ? `1 to ${model.longest}` : model.D;
  find("own-text").placeholder = model.medium === "text" ? `Type a text of ${length} characters` : model.groups[0].name ? names : `${model.D} numbers, separated by commas`;
  find("own-text").value = "";
  find("own-what").textContent = "\u00a0";
  find("resize").hidden = true;
  page.ask.compare(page.comparing);
  showPins();
}

// ---------------------------------------------------------------- the user's own example

function examine(example) {
  page.example = example;
  find("resize").hidden = true;
  again();
}

async function openPicture(file) {
  try {
    const bitmap = await decodePicture(file);
    const [group] = page.ask.model.groups;
    const [height, width] = group.shape.slice(-2);
    if (bitmap.width === width && bitmap.height === height) {
      write("own-what", file.name);
      return examine({ values: readPicture(bitmap, group) });
    }
    page.bitmap = bitmap;
    find("resize").hidden = false;
    return write("own-what", `This picture has ${bitmap.width} × ${bitmap.height} pixels; the model's have ${width} × ${height}.`);
  } catch (error) {
    return notice(error.message);
  }
}

function examineText() {
  const text = find("own-text").value;
  try {
    // The server reads texts and rows of tables, because it knows the names of their values.
    const named = page.ask.model.groups.every((group) => group.symbols);
    examine(named ? { text } : { values: readValues(text, page.ask.model) });
  } catch (error) {
    notice(error.message);
  }
}

// ---------------------------------------------------------------- wiring

function on(id, event, act) {
  find(id).addEventListener(event, act);
}

function wireTime() {
  on("play", "click", () => play(!page.playing));
  on("back", "click", () => step(-1));
  on("step", "click", () => step(1));
  on("t", "input", () => {
    play(false);
    const [run] = shownRuns();
    if (!run) return;
    page.goal = Number(find("t").value) + 0.5 / run.start.request.steps;
    page.t = run.at(page.goal).t;
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key.toLowerCase() === "z" && !event.target.matches("input:not([type=range], [type=radio], [type=checkbox]), textarea") && !film) {
        event.preventDefault();
        pins.undo();
      }
      return;
    }
    const slider = event.target === find("t");
    if (!slider && event.target.matches("input:not([type=radio]), textarea, select")) return;
    if (event.key === " " && !event.target.matches("button, label")) {
      event.preventDefault();
      find("play").click();
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (event.target.matches("input[type=radio]")) return;
      event.preventDefault();
      step(event.key === "ArrowLeft" ? -1 : 1);
    } else if (slider && (event.key === "Home" || event.key === "End")) {
      event.preventDefault();
      step(event.key === "Home" ? -Infinity : Infinity);
    }
  });
  on("bars", "keydown", (event) => {
    const next = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    event.target[next]?.focus();
  });
}

function wireAsk() {
  for (const name of ["solver", "calls", "guidance", "label", "length", "seed", "solver-b", "calls-b", "guidance-b", "label-b", "particles", "since"]) {
    on(name, "change", () => {
      page.ask.settle();
      showPins();
      askSoon();
    });
  }
  for (const name of ["guidance", "seed"]) on(name, "input", () => find(name).value !== "" && askSoon());
  on("ask", "submit", (event) => {
    event.preventDefault();
    generate();
  });
  on("another", "click", () => {
    find("seed").value = Number(find("seed").value || 0) + 1;
    generate();
  });
  on("model", "change", () => {
    page.ask.adopt(page.ask.model);
    pins.forget();
    changeModel();
    again();
  });
  on("model-b", "change", () => {
    page.ask.adoptSecond();
    again();
  });
  on("generate-again", "click", generate);
}

function wireRest() {
  on("compare", "click", () => {
    page.comparing = !page.comparing;
    find("compare").setAttribute("aria-pressed", String(page.comparing));
    page.panes[1].run = page.panes[1].next = null;
    page.whose = 0;
    if (film) return showRecorded();
    page.ask.compare(page.comparing);
    if (page.comparing && page.ask.second === page.ask.model) {
      for (const name of ["calls", "guidance", "label"]) find(`${name}-b`).value = find(name).value;
      // Two identical runs would show nothing: start with another solver.
      find("solver-b").value = find("solver").value === "ancestral" ? "sde2" : "ancestral";
    }
    if (!page.comparing) page.live.send({ do: "stop", pane: 1 });
    return again();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    forgetPalette();
    redraw();
  });
  [...find("whose").querySelectorAll("button")].forEach((button, k) => button.addEventListener("click", () => {
    page.whose = k;
    redraw();
  }));
  on("undo", "click", () => pins.undo());
  on("unpin", "click", () => {
    pins.remember();
    pins.remove([...pins.now.keys()]);
  });
  on("dismiss", "click", () => (find("notice").hidden = true));
  on("reconnect", "click", connect);
  on("examine", "click", examineText);
  on("own-text", "keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) examineText();
  });
  on("examine-sample", "click", () => {
    const [run] = shownRuns();
    if (run?.end?.values) examine({ values: run.end.values });
  });
  on("file", "change", () => {
    if (find("file").files.length) openPicture(find("file").files[0]);
    find("file").value = "";
  });
  on("resize", "click", () => {
    write("own-what", "Cropped around the centre and resized.");
    examine({ values: readPicture(page.bitmap, page.ask.model.groups[0]) });
  });
  for (const name of ["dragover", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (name === "drop" && file && !film) {
        if (page.ask.model.medium === "image") openPicture(file);
        else file.text().then((text) => (find("own-text").value = text.slice(0, 10000)));
      }
    });
  }
  for (const button of document.querySelectorAll("[data-download]")) button.addEventListener("click", () => download(button.dataset.download));
  on("copy", "click", async () => {
    try {
      await navigator.clipboard.writeText(find("command").textContent);
      notice("Copied.", 1500);
    } catch {
      getSelection().selectAllChildren(find("command"));
      notice("Press Ctrl+C to copy the command line.", 4000);
    }
  });
}

function connect() {
  page.live = new Live(receive, () => {
    play(false);
    notice("The server has stopped, or the connection to it was lost. The page keeps what it shows.");
    find("reconnect").hidden = false;
  });
}

wireTime();
wireAsk();
wireRest();
if (film) readFilm(film.textContent, receive).then(beginFilm, () => notice("This film is damaged: record it again with bfn view."));
else connect();
