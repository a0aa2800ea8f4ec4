// The controls of a generation: the form, the request it makes, and the settings kept in the address.

import { aboutData } from "./run.js";

const FIELDS = ["solver", "steps", "guidance", "label", "length", "seed", "particles"];

function fill(select, options) {
  select.replaceChildren(...options.map(([value, words, title]) => {
    const option = new Option(words, value);
    option.title = title ?? "";
    return option;
  }));
}

function number(input, otherwise) {
  const value = Number(input.value);
  if (input.value === "" || Number.isNaN(value)) return otherwise;
  return Math.min(Number(input.max || Infinity), Math.max(Number(input.min || 0), value));
}

function integer(input, otherwise) {
  return Math.round(number(input, otherwise));
}

export class Ask {
  constructor(find, hello) {
    this.find = find;
    this.hello = hello;
    const models = hello.models.map((model) => [model.id, model.title, model.about]);
    const solvers = hello.solvers.map((solver) => [solver.name, solver.name, solver.about]);
    for (const name of ["model", "model-b"]) fill(find(name), models);
    for (const name of ["solver", "solver-b"]) fill(find(name), solvers);
    for (const name of ["calls", "calls-b"]) find(name).max = hello.limits.steps + 1;
    for (const name of ["guidance", "guidance-b"]) find(name).max = hello.limits.guidance;
    for (const name of ["seed", "particles"]) find(name).max = hello.limits[name];
  }

  get model() {
    return this.hello.models.find((model) => model.id === this.find("model").value);
  }

  get second() {
    return this.hello.models.find((model) => model.id === this.find("model-b").value);
  }

  // Show the defaults, labels and lengths of another model.
  adopt(model) {
    const { find } = this;
    const { defaults } = model;
    find("model").value = model.id;
    this.put(defaults);
    for (const name of ["solver", "guidance", "calls"]) find(`${name}-b`).value = find(name).value;
    find("model-b").value = model.id;
    find("particles").value = 1;
    this.offerLabels(model, "label");
    this.offerLabels(model, "label-b");
    for (const [name, used] of [["label", model.labels], ["guidance", model.labels], ["length", model.longest]]) {
      for (const element of [find(name), document.querySelector(`label[for=${name}]`)]) element.hidden = !used;
    }
    if (model.longest) {
      find("length").min = 1;
      find("length").max = model.longest;
      find("length").value = "";
    }
    find("about").textContent = aboutData(model);
  }

  offerLabels(model, name) {
    fill(this.find(name), [["", "any"], ...(model.labels ?? []).map((label, k) => [k, label])]);
    this.find(name).value = model.defaults.label ?? "";
  }

  // The second model changed: it has its own solver, calls and labels.
  adoptSecond() {
    const { defaults } = this.second;
    this.find("solver-b").value = defaults.solver;
    this.find("calls-b").value = defaults.steps + 1;
    this.offerLabels(this.second, "label-b");
    this.compare(true);
  }

  put(values) {
    const { find } = this;
    if (values.solver) find("solver").value = values.solver;
    if (values.steps) find("calls").value = values.steps + 1;
    for (const name of ["guidance", "seed", "particles", "length", "label"]) if (values[name] !== undefined) find(name).value = values[name] ?? "";
  }

  compare(on) {
    const { find } = this;
    find("versus").hidden = !on;
    for (const name of ["solver-b", "calls-b"]) find(name).hidden = !on;
    for (const name of ["guidance", "label"]) {
      const [first, second] = [this.model.labels, on && this.second.labels];
      find(`${name}-b`).hidden = !second;
      document.querySelector(`label[for=${name}]`).hidden = !first && !second;
    }
    document.body.classList.toggle("comparing", on);
  }

  // The settings of pane 0 or 1 as the server expects them; both share the seed, the length and the particles.
  settings(pane) {
    const { find } = this;
    const own = (name) => find(pane ? `${name}-b` : name);
    const { model } = this;
    const shown = pane ? this.second : model;
    const label = own("label").value;
    return {
      model: shown.id,
      solver: own("solver").value,
      steps: integer(own("calls"), shown.defaults.steps + 1) - 1,
      seed: integer(find("seed"), 0),
      label: shown.labels && label !== "" ? Number(label) : null,
      guidance: shown.labels ? number(own("guidance"), 1) : 1,
      length: shown.longest && find("length").value !== "" ? integer(find("length")) : null,
      particles: integer(find("particles"), 1),
    };
  }

  // Replace numbers outside their limits by the nearest ones inside.
  settle() {
    this.put(this.settings(0));
    const { steps, guidance } = this.settings(1);
    this.find("calls-b").value = steps + 1;
    this.find("guidance-b").value = guidance;
  }

  // The address carries the settings, so that a reload or a bookmark shows the same.
  remember(pins) {
    const settings = this.settings(0);
    const words = new URLSearchParams({ model: settings.model });
    for (const name of FIELDS) if (settings[name] !== null) words.set(name, settings[name]);
    if (pins.size && pins.size <= 256) words.set("pins", [...pins].map(([i, value]) => `${i}:${value}`).join(","));
    history.replaceState(null, "", `#${words}`);
  }

  // Read the settings from the address; returns its pins.
  recall() {
    const words = new URLSearchParams(location.hash.slice(1));
    const model = this.hello.models.find((each) => each.id === words.get("model"));
    this.adopt(model ?? this.hello.models[0]);
    if (!model) return [];
    const values = {};
    for (const name of FIELDS) if (words.has(name)) values[name] = name === "solver" ? words.get(name) : Number(words.get(name));
    if (values.solver && !this.hello.solvers.some((solver) => solver.name === values.solver)) delete values.solver;
    this.put(values);
    this.settle();
    const pairs = (words.get("pins") ?? "").split(",").filter(Boolean).map((pair) => pair.split(":").map(Number));
    return pairs.filter(([i, value]) => Number.isInteger(i) && i >= 0 && i < model.D && Number.isFinite(value));
  }
}
