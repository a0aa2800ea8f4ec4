// The colours of the canvases are those of the style sheet, read again when they change between light and dark.

const NAMES = ["ink", "soft", "faint", "line", "ground", "plate", "accent", "second", "ramp-0", "ramp-1", "ramp-2", "ramp-3"];
let cached = null;

function readColour(name) {
  const probe = document.getElementById("probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
}

// 256 colours from 0 (the background) to 1, interpolated between four of the style sheet.
function buildRamp(stops) {
  const ramp = new Uint8ClampedArray(256 * 3);
  for (let v = 0; v < 256; v++) {
    const place = (v / 255) * (stops.length - 1);
    const k = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) ramp[v * 3 + c] = stops[k][c] + (stops[k + 1][c] - stops[k][c]) * (place - k);
  }
  return ramp;
}

export function palette() {
  if (cached) return cached;
  const colours = Object.fromEntries(NAMES.map((name) => [name, readColour(name)]));
  cached = Object.fromEntries(NAMES.map((name) => [name, `rgb(${colours[name].join(" ")})`]));
  cached.ramp = buildRamp([0, 1, 2, 3].map((k) => colours[`ramp-${k}`]));
  return cached;
}

export function forgetPalette() {
  cached = null;
}

export function rampColour(fraction) {
  const v = Math.max(0, Math.min(255, Math.round(fraction * 255)));
  const ramp = palette().ramp;
  return `rgb(${ramp[v * 3]} ${ramp[v * 3 + 1]} ${ramp[v * 3 + 2]})`;
}
