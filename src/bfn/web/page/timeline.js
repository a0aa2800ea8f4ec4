// The curves under the slider: bits received and bits still uncertain over t, or an example's loss by time.

import { openCanvas } from "./draw.js";
import { palette } from "./palette.js";

const CHART_MARGIN = 9; // half the slider's thumb, so that curve and thumb are aligned

function curvesOf(run) {
  if (run.examined) return [{ key: "rate", name: "loss by time, bits per unit of t", fill: true }];
  return [{ key: "entropy", name: "still uncertain", dashed: true }, { key: "bits", name: "received" }];
}

// The top of the chart never falls, so that curves do not shrink as they grow longer.
export function chartTop(runs, before) {
  let top = before;
  for (const run of runs) {
    for (const { key } of curvesOf(run)) {
      for (const frame of run.frames) if (frame[key] > top) top = frame[key];
    }
  }
  return top;
}

export function paintTimeline(canvas, runs, t, top) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width) return;
  const context = openCanvas(canvas, width, height);
  const colours = palette();
  const [ceiling, floor] = [20, height - 20];
  const x = (time) => CHART_MARGIN + time * (width - 2 * CHART_MARGIN);
  const y = (value) => floor - (value / (top || 1)) * (floor - ceiling);
  context.font = '11px ui-sans-serif, system-ui, "Segoe UI", Roboto, sans-serif';
  context.fillStyle = colours.soft;
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x(0), floor + 0.5);
  context.lineTo(x(1), floor + 0.5);
  context.stroke();
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    context.textAlign = tick === 0 ? "left" : tick === 1 ? "right" : "center";
    context.fillText(tick === 0 ? "t = 0" : String(tick), tick === 0 ? 0 : tick === 1 ? width : x(tick), height - 5);
  }
  runs.forEach((run, which) => {
    for (const curve of curvesOf(run)) {
      const frames = run.frames.filter((frame) => frame[curve.key] !== null && frame[curve.key] !== undefined);
      if (frames.length < 2) continue;
      const colour = which ? colours.second : colours.ink;
      for (const past of [false, true]) {
        const shown = past ? frames.filter((frame) => frame.t <= t + 1e-9) : frames;
        if (!shown.length) continue;
        context.globalAlpha = past ? 1 : 0.28;
        context.strokeStyle = curve.dashed ? colours.soft : colour;
        if (which) context.strokeStyle = colour;
        context.setLineDash(curve.dashed ? [2, 3] : []);
        context.lineWidth = curve.dashed ? 1.25 : 2;
        context.lineJoin = "round";
        context.beginPath();
        shown.forEach((frame) => context.lineTo(x(frame.t), y(frame[curve.key])));
        context.stroke();
        if (curve.fill && past) {
          context.globalAlpha = 0.1;
          context.lineTo(x(shown[shown.length - 1].t), floor);
          context.lineTo(x(shown[0].t), floor);
          context.fillStyle = colour;
          context.fill();
        }
      }
      context.setLineDash([]);
      context.globalAlpha = 1;
      if (which) continue;
      // The name is above the curve: at its end for the bits received, otherwise at its beginning.
      context.fillStyle = curve.dashed ? colours.soft : colour;
      const late = curve.key === "bits";
      const near = runs.flatMap((each) => each.frames.filter((frame) => (late ? frame.t > 0.85 : frame.t < 0.15)).map((frame) => y(frame[curve.key])));
      context.textAlign = late ? "right" : "left";
      if (near.length) context.fillText(curve.name, x(late ? 1 : 0) - (late ? 6 : 0), curve.fill ? 12 : Math.max(12, Math.min(...near) - 7));
    }
  });
  if (!runs.some((run) => run.frames.some((frame) => curvesOf(run).some(({ key }) => typeof frame[key] === "number")))) {
    context.fillStyle = colours.faint;
    context.textAlign = "left";
    if (runs.length && runs[0].frames.length) context.fillText("A continuous model's output is a single point, so it has neither bits nor an entropy.", x(0), 12);
  }
}
