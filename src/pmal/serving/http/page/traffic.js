// What the service has seen so far: how many were rejected, and whether images still look as held-out ones did.

import { element } from "./scale.js";

const SVG = "http://www.w3.org/2000/svg", WIDTH = 320, HEIGHT = 90, EVERY = 15_000;
const LINES = [["known", "accepted images"], ["traffic", "all images"]];
const $ = (id) => document.getElementById(id);

/** Show it now, and again while the page is looked at. */
export function watchTraffic() {
  showTraffic();
  setInterval(() => document.hidden || showTraffic(), EVERY);
}

export async function showTraffic() {
  try {
    const response = await fetch("v1/traffic");
    if (response.ok) draw(await response.json());
  } catch {
    // The service is away: what was seen stays, and the next answer says so.
  }
}

function draw(seen) {
  const alarms = seen.words.filter((line) => line.startsWith("ALARM"));
  $("alarm").hidden = !alarms.length;
  $("alarm").textContent = alarms.length ? `${alarms.join(". ")}. Correct some answers, or train again.` : "";
  $("traffic").hidden = false;
  $("traffic-words").replaceChildren(
    ...(seen.reason ? [`Not watched: ${seen.reason}.`] : seen.words).map((line) => element("li", "", line)));
  const enough = !seen.reason && seen.answered > 1;
  $("traffic-charts").hidden = !enough;
  if (!enough) return;
  $("rate-chart").replaceChildren(...rateChart(seen));
  $("evidence-chart").replaceChildren(...evidenceChart(seen));
}

/** Between two points each, the share of images that was rejected. */
function rateChart({ points, expected_rejection_rate: expected }) {
  const { answered, rejected } = points, last = answered.at(-1);
  const bars = Math.min(24, answered.length - 1), at = (i) => Math.round((i * (answered.length - 1)) / bars);
  const shapes = [];
  for (let i = 0; i < bars; i++) {
    const [from, to] = [at(i), at(i + 1)], x = (WIDTH * answered[from]) / last;
    const share = (rejected[to] - rejected[from]) / (answered[to] - answered[from]);
    const width = Math.max(1, (WIDTH * (answered[to] - answered[from])) / last - 1), height = HEIGHT * share;
    shapes.push(shape("rect", "share", { x, y: HEIGHT - height, width, height }));
  }
  return [...shapes, level(HEIGHT * (1 - expected), "expected")];
}

function evidenceChart({ points, false_alarms: alarm }) {
  const limit = -Math.log10(alarm), all = LINES.flatMap(([name]) => points[name]);
  const low = Math.min(-1, ...all), high = Math.max(1.15 * limit, ...all), last = points.answered.at(-1);
  const y = (value) => (HEIGHT * (high - value)) / (high - low);
  const lines = LINES.map(([name]) => shape("polyline", name, {
    points: points[name].map((value, i) => `${(WIDTH * points.answered[i]) / last},${y(value)}`).join(" "),
  }));
  return [level(y(limit), "limit-line"), ...lines];
}

const level = (y, name) => shape("line", name, { x1: 0, x2: WIDTH, y1: y, y2: y });

function shape(tag, name, attributes) {
  const made = document.createElementNS(SVG, tag);
  made.setAttribute("class", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
