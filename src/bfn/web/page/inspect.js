// The bars of one variable: its classes, levels or range. Each bar is a button that pins its value.

import { spreadOf } from "./draw.js";
import { MANY, ownUnits, tallestOf, writeClass, writeNumber } from "./run.js";

// The probability, the name and the value of each bar.
function barsOf(run, frame, g, j) {
  const group = run.model.groups[g];
  const p = spreadOf(run, frame, g, j, false);
  const received = spreadOf(run, frame, g, j, true);
  if (group.kind === "classes" && !p) {
    const top = run.plane(frame, "top", g);
    if (!top) return null;
    const topP = run.plane(frame, "top_p", g);
    const classes = [...top.values.subarray(j * top.per, (j + 1) * top.per)];
    return { p: classes.map((_, k) => topP.values[j * top.per + k] / 255), received: null, names: classes.map((k) => writeClass(group, k, true)), values: classes };
  }
  if (!p) return null;
  const values = Array.from(p, (_, k) => {
    if (group.kind === "classes") return k;
    if (group.kind === "levels") return p.length === group.K ? k : Math.round(((k + 0.5) / p.length) * (group.K - 1));
    return Number(ownUnits(group, j, (k + 0.5) / p.length).toPrecision(6));
  });
  const names = values.map((value) => (group.kind === "classes" ? writeClass(group, value, true) : group.kind === "levels" ? String(value) : writeNumber(value)));
  return { p, received, names, values };
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

  // `second`: the probabilities of a run beside it, drawn as marks.
  show(run, frame, g, j, pinned, canPin, second) {
    const bars = frame && barsOf(run, frame, g, j);
    const group = run.model.groups[g];
    const beside = second?.length === bars?.p.length ? second : null;
    const key = bars ? `${bars.p.length} ${canPin} ${Boolean(beside)}` : "";
    if (key !== this.shown) this.build(bars, canPin, beside);
    this.shown = key;
    if (!bars) return;
    this.values = bars.values;
    this.place.classList.toggle("named", bars.p.length <= MANY && group.kind !== "numbers" && Math.max(...bars.names.map((name) => name.length)) <= 2);
    this.place.classList.toggle("long", bars.p.length <= 12 && group.kind === "classes" && Math.max(...bars.names.map((name) => name.length)) > 2);
    const tallest = tallestOf(group, bars.p, beside ?? []);
    // A pinned number need not be the middle of a bar.
    const far = bars.values.map((value) => (group.kind === "classes" ? Number(value !== pinned) : Math.abs(value - pinned)));
    const nearest = pinned === undefined ? -1 : far.indexOf(Math.min(...far));
    [...this.place.children].forEach((bar, k) => {
      bar.style.setProperty("--p", Math.min(1, bars.p[k] / tallest).toFixed(3));
      bar.style.setProperty("--received", bars.received ? Math.min(1, bars.received[k] / tallest).toFixed(3) : "0");
      if (beside) bar.style.setProperty("--beside", Math.min(1, beside[k] / tallest).toFixed(3));
      bar.classList.toggle("pinned", k === nearest);
      const name = bars.names[k];
      if (bar.dataset.name !== name) {
        bar.dataset.name = name;
        bar.lastChild.textContent = name;
      }
      const title = `${name}: ${bars.p[k].toFixed(2)}${beside ? `, beside ${beside[k].toFixed(2)}` : ""}`;
      bar.title = canPin ? `${title}. Pin it.` : title;
      bar.setAttribute("aria-label", bar.title);
    });
  }

  build(bars, canPin, beside) {
    this.place.replaceChildren();
    bars?.p.forEach((_, k) => {
      const bar = document.createElement("button");
      bar.type = "button";
      bar.disabled = !canPin;
      bar.dataset.k = k;
      bar.append(document.createElement("i"), ...(beside ? [document.createElement("u")] : []), document.createElement("b"));
      this.place.append(bar);
      if (k) bar.tabIndex = -1;
    });
    this.place.style.setProperty("--n", bars ? bars.p.length : 1);
  }
}
