// One generation, or one examined example: the frames received so far and what their numbers mean.

export class Run {
  constructor(start, model) {
    this.start = start;
    this.model = model;
    this.id = start.run;
    this.frames = [];
    this.end = null;
    this.examined = start.request.do === "examine";
    this.map = null; // examined: the bits of each variable
  }

  add(header, body) {
    this.frames.push({ step: header.step, t: header.t, bits: header.bits, entropy: header.entropy, rate: header.rate, body });
  }

  finish(header, body) {
    this.end = header;
    if (body.byteLength) this.map = new Float32Array(body, 0, this.model.D);
  }

  get last() {
    return this.frames[this.frames.length - 1];
  }

  get receivedUntil() {
    return this.end ? 1 : (this.last?.t ?? 0);
  }

  // The index of the newest frame at or before t.
  place(t) {
    let low = 0;
    let high = this.frames.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.frames[middle].t <= t + 1e-9) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  at(t) {
    return this.frames[this.place(t)];
  }

  // The numbers of one plane of one group in a frame, `per` of them for each variable; null if absent.
  plane(frame, name, group) {
    const plane = this.start.planes.find((each) => each.name === name && each.group === group);
    if (!plane || !frame) return null;
    const type = plane.type === "u16" ? Uint16Array : Uint8Array;
    return { per: plane.per, values: new type(frame.body, plane.offset, plane.count * plane.per) };
  }

  // The leading class of every variable of a group and its probability, under the output or theta.
  leading(frame, group, ofTheta) {
    const all = this.plane(frame, ofTheta ? "input_p" : "p", group);
    const count = this.model.groups[group].count;
    const k = new Uint16Array(count);
    const p = new Float32Array(count);
    if (all) {
      for (let j = 0; j < count; j++) {
        const start = j * all.per;
        for (let c = 0; c < all.per; c++) {
          const value = all.values[start + c] / 255;
          if (value > p[j]) {
            p[j] = value;
            k[j] = c;
          }
        }
      }
      return { k, p };
    }
    const top = this.plane(frame, ofTheta ? "input_top" : "top", group);
    if (!top) return null;
    const topP = this.plane(frame, ofTheta ? "input_top_p" : "top_p", group);
    for (let j = 0; j < count; j++) {
      k[j] = top.values[j * top.per];
      p[j] = topP.values[j * top.per] / 255;
    }
    return { k, p };
  }
}

// What the model's data are, for the page.
export function aboutData(model) {
  return model.about.replace(/(\d) x (?=\d)/g, "$1 × ");
}

// A fraction of the range in the data's own units; `low` and `high` are lists if they differ by variable.
export function ownUnits(group, j, fraction) {
  const low = Array.isArray(group.low) ? group.low[j] : group.low;
  const high = Array.isArray(group.high) ? group.high[j] : group.high;
  return low + (high - low) * fraction;
}

// A value of the sample plane as a fraction of the range, 0 to 1; a class unchanged.
export function drawnValue(group, plane, j) {
  const value = plane.values[j];
  if (group.kind === "numbers") return value / 65535;
  return group.kind === "levels" ? value / (group.K - 1) : value;
}

export function writeNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2);
  return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3);
}

// The text for class k: a character, a name or the number itself.
export function writeClass(group, k, visible) {
  const symbol = group.symbols ? group.symbols[k] : String(k);
  if (symbol === "\n" || symbol === "\\n") return "⏎";
  if (symbol === " ") return visible ? "␣" : " ";
  return symbol ?? "?";
}

// A few classes are drawn to scale; levels, many classes and densities relative to their peak.
export const MANY = 36;
export function tallestOf(group, ...spreads) {
  if (group.kind === "classes" && group.K <= MANY) return 1;
  return Math.max(group.kind === "levels" ? 0.25 : 0.01, ...spreads.flatMap((spread) => [...spread]));
}

export function writeValue(group, value) {
  if (value === null || value === undefined) return "–";
  if (group.kind === "classes") return value < 0 ? "–" : writeClass(group, value, true);
  return group.kind === "levels" ? String(value) : writeNumber(value);
}

// A value of the example, in its own units or levels, as a fraction of the range.
export function fractionOf(group, j, value) {
  if (group.kind === "levels") return value / (group.K - 1);
  const low = ownUnits(group, j, 0);
  return (value - low) / (ownUnits(group, j, 1) - low);
}

export function sameVariables(a, b) {
  const signature = (model) => JSON.stringify(model.groups.map((group) => [group.name, group.kind, group.shape, group.K, group.low, group.high, group.symbols]));
  return a === b || signature(a) === signature(b);
}
