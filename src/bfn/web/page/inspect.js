// The bars of one variable: its classes, levels or range. Each bar is a button that pins its value.

import { spreadOf } from "./draw.js";
import { ownUnits, writeClass, writeNumber } from "./run.js";

// What the bars stand for: how many, the name and the value of each.
function barsOf(run, frame, g, j) {
  const group = run.model.groups[g];
  const p = spreadOf(run, frame, g, j, false);
  const heard = spreadOf(run, frame, g, j, true);
  if (group.kind === "classes" && !p) {
    const top = run.plane(frame, "top", g);
    if (!top) return null;
    const topP = run.plane(frame, "top_p", g);
    const classes = [...top.values.subarray(j * top.per, (j + 1) * top.per)];
    return { p: classes.map((_, k) => topP.values[j * top.per + k] / 255), heard: null, names: classes.map((k) => writeClass(group, k, true)), values: classes };
  }
  if (!p) return null;
  const values = Array.from(p, (_, k) => {
    if (group.kind === "classes") return k;
    if (group.kind === "levels") return p.length === group.K ? k : Math.round(((k + 0.5) / p.length) * (group.K - 1));
    return Number(ownUnits(group, j, (k + 0.5) / p.length).toPrecision(6));
  });
  const names = values.map((value) => (group.kind === "classes" ? writeClass(group, value, true) : group.kind === "levels" ? String(value) : writeNumber(value)));
  return { p, heard, names, values };
}

export class Bars {
  constructor(place, choose) {
    this.place = place;
    this.shown = "";
    this.values = [];
    place.addEventListener("click", (event) => {
      const bar = event.target.closest("button");
      if (bar) choose(this.values[Number(bar.dataset.k)]);
    });
  }

  show(run, frame, g, j, pinned, canPin) {
    const bars = frame && barsOf(run, frame, g, j);
    const group = run.model.groups[g];
    const key = bars ? `${bars.p.length} ${canPin}` : "";
    if (key !== this.shown) this.build(bars, canPin);
    this.shown = key;
    if (!bars) return;
    this.values = bars.values;
    this.place.classList.toggle("named", bars.p.length <= 36 && group.kind !== "numbers" && Math.max(...bars.names.map((name) => name.length)) <= 2);
    this.place.classList.toggle("long", bars.p.length <= 12 && group.kind === "classes" && Math.max(...bars.names.map((name) => name.length)) > 2);
    // Classes are drawn to scale; levels, and a density over a range, up to the height of their peak.
    const tallest = group.kind === "classes" ? 1 : Math.max(group.kind === "levels" ? 0.25 : 0.01, ...bars.p);
    [...this.place.children].forEach((bar, k) => {
      bar.style.setProperty("--p", Math.min(1, bars.p[k] / tallest).toFixed(3));
      bar.style.setProperty("--heard", bars.heard ? Math.min(1, bars.heard[k] / tallest).toFixed(3) : "0");
      bar.classList.toggle("pinned", pinned !== undefined && pinned === bars.values[k]);
      const name = bars.names[k];
      if (bar.dataset.name !== name) {
        bar.dataset.name = name;
        bar.lastChild.textContent = name;
      }
      const title = `${name}: ${bars.p[k].toFixed(2)}`;
      bar.title = canPin ? `${title}. Pin it.` : title;
      bar.setAttribute("aria-label", bar.title);
    });
  }

  build(bars, canPin) {
    this.place.replaceChildren();
    bars?.p.forEach((_, k) => {
      const bar = document.createElement("button");
      bar.type = "button";
      bar.disabled = !canPin;
      bar.dataset.k = k;
      bar.append(document.createElement("i"), document.createElement("b"));
      this.place.append(bar);
      if (k) bar.tabIndex = -1;
    });
    this.place.style.setProperty("--n", bars ? bars.p.length : 1);
  }
}
