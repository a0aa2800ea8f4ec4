// Pinning with the pointer and the keyboard: a brush, letters typed on the chosen variable, Enter and Delete.

import { formOf } from "./draw.js";
import { ownUnits, writeClass } from "./run.js";

// The flat indices of a cell: one, or three for the channels of a colour.
function placesAt(group, j) {
  const colour = formOf(group) === "picture" && group.count === 3 * group.shape.at(-1) * group.shape.at(-2);
  return colour ? [0, 1, 2].map((c) => group.start + (c * group.count) / 3 + (j % (group.count / 3))) : [group.start + j];
}

export class Brush {
  // `around` has callbacks: editable() says whether pins may change, begin() starts a stroke,
  // choose(g, j) chooses a variable, and notice(words, milliseconds) shows a message.
  constructor(find, pins, around) {
    this.find = find;
    this.pins = pins;
    this.around = around;
    this.shown = "";
    find("tool").addEventListener("change", () => document.body.classList.toggle("brushing", this.painting));
  }

  get tool() {
    return document.querySelector("input[name=tool]:checked").value;
  }

  get painting() {
    return this.tool !== "inspect";
  }

  // Show the control that suits the chosen group's values.
  show(model, g) {
    const key = `${model.id} ${g}`;
    if (key === this.shown) return;
    this.shown = key;
    const { find } = this;
    const group = model.groups[g];
    const kind = placesAt(group, 0).length === 3 ? "colour" : { levels: "shade", classes: "class", numbers: "number" }[group.kind];
    for (const name of ["shade", "colour", "class", "number"]) find(name).hidden = name !== kind;
    find("shade-name").htmlFor = kind;
    find("shade-name").textContent = { colour: "Colour", shade: "Shade", class: formOf(group) === "letters" && group.symbols ? "Letter" : group.symbols ? "Value" : "Class", number: "Value" }[kind];
    if (kind === "shade") find("shade").max = find("shade").value = group.K - 1;
    if (kind === "class") find("class").replaceChildren(...Array.from({ length: group.K }, (_, k) => new Option(writeClass(group, k, true), k)));
    if (kind === "number") find("number").value = Number(ownUnits(group, 0, 0.5).toPrecision(4));
  }

  values(group, places) {
    const { find } = this;
    if (places.length === 3) {
      const hex = find("colour").value;
      const channels = [0, 1, 2].map((c) => parseInt(hex.slice(1 + 2 * c, 3 + 2 * c), 16) / 255);
      return channels.map((value) => (group.kind === "levels" ? Math.round(value * (group.K - 1)) : ownUnits(group, 0, value)));
    }
    return [Number(find({ levels: "shade", classes: "class", numbers: "number" }[group.kind]).value)];
  }

  pin(places, values) {
    this.around.begin();
    this.pins.remember();
    this.pins.set(places.map((i, c) => [i, values[c]]));
  }

  // Apply the tool to a variable; `first` starts a new stroke. A stroke is undone in one go.
  touch(run, g, j, first) {
    if (!this.painting || !this.around.editable()) return;
    const group = run.model.groups[g];
    const places = placesAt(group, j);
    if (this.tool === "keep" && !run.end) {
      this.around.notice("Wait for the sample before you keep part of it.", 4000);
      return;
    }
    if (first) {
      this.around.begin();
      this.pins.remember();
    }
    if (this.tool === "unpin") this.pins.remove(places);
    else {
      const values = this.tool === "keep" ? places.map((i) => run.end.values[i]) : this.values(group, places);
      this.pins.set(places.map((i, c) => [i, values[c]]));
    }
  }

  // Handle a key pressed on the chosen variable; returns whether it was used.
  typed(group, g, j, event) {
    if (!this.around.editable() || event.ctrlKey || event.metaKey || event.altKey) return false;
    const places = placesAt(group, j);
    if (event.key === "Delete" || event.key === "Backspace") {
      this.pins.remember();
      this.pins.remove(places);
      if (event.key === "Backspace" && group.kind === "classes" && j > 0) this.around.choose(g, j - 1);
      return true;
    }
    if (event.key === "Enter") {
      this.pin(places, this.values(group, places));
      return true;
    }
    if (formOf(group) !== "letters" || !group.symbols || event.key.length !== 1) return false;
    const spellings = [event.key, event.key.toLowerCase(), event.key.toUpperCase()];
    const k = spellings.map((key) => group.symbols.indexOf(key)).find((place) => place >= 0);
    if (k === undefined) {
      if (event.key !== " ") this.around.notice(`“${event.key}” is not in the model’s alphabet.`, 4000);
      return event.key !== " ";
    }
    this.pin(places, [k]);
    if (j + 1 < group.count) this.around.choose(g, j + 1);
    return true;
  }
}
