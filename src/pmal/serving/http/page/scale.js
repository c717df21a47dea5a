// The score on the scale of its threshold: known to the left, unknown to the right, held-out known images as bars.

const SVG = "http://www.w3.org/2000/svg";

/** A number of the service, which writes infinite ones as text. */
export const number = (value) =>
  typeof value === "string" ? { inf: Infinity, "-inf": -Infinity }[value] ?? NaN : value;

/** As the service decides: what breaks the model is never accepted. */
export const isKnown = (score, limit) => score <= limit && score < Infinity;

export const figure = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(3))) : "∞");

/** From a score to a share of the width. The range stays while the threshold moves, so that nothing jumps. */
export function makeScale(model, score) {
  const known = model.known_scores;
  const limits = (model.acceptance?.thresholds ?? []).flat().concat(model.classes.map((c) => c.threshold));
  const values = [...limits.map(number), score, known?.low, known?.high].filter(Number.isFinite);
  // One by one: a threshold for each class and rate can be more than a call takes.
  const [low, high] = values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [values[0] ?? 0, values[0] ?? 0]);
  const room = (high - low || 1) * 0.05;
  return (value) => Math.min(1, Math.max(0, (value - low + room) / (high - low + 2 * room)));
}

export function drawScale(box, model, score, limit) {
  const at = makeScale(model, score);
  const plot = element("div", "plot");
  const zone = plot.appendChild(element("div", "zone"));
  zone.style.width = percent(at(limit));
  if (model.known_scores) plot.append(bars(model.known_scores, at));
  const line = element("div", "limit"), pin = element("div", "pin");
  line.style.left = percent(at(limit));
  pin.style.left = percent(at(score));
  const limitTag = element("div", "tag limit-tag", limit === Infinity ? "accepts all" : `threshold ${figure(limit)}`);
  const pinTag = element("div", "tag pin-tag", `this image ${figure(score)}`);
  box.replaceChildren(plot, line, pin, limitTag, pinTag);
  box.classList.toggle("known", isKnown(score, limit));
  keepInside(limitTag, at(limit), box);
  keepInside(pinTag, at(score), box);
}

function bars({ low, high, counts }, at) {
  const svg = document.createElementNS(SVG, "svg"), most = Math.max(...counts);
  svg.setAttribute("viewBox", `0 0 ${counts.length} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.style.left = percent(at(low));
  svg.style.width = percent(at(high) - at(low));
  counts.forEach((count, i) => {
    const bar = svg.appendChild(document.createElementNS(SVG, "rect"));
    const height = count ? Math.max(4, 92 * Math.sqrt(count / most)) : 0;
    for (const [name, value] of Object.entries({ x: i + 0.08, y: 100 - height, width: 0.84, height }))
      bar.setAttribute(name, value);
  });
  return svg;
}

function keepInside(tag, share, box) {
  const width = box.clientWidth, half = tag.offsetWidth / 2;
  tag.style.left = `${Math.min(Math.max(share * width - half, 0), Math.max(width - 2 * half, 0))}px`;
}

const percent = (share) => `${100 * share}%`;

/** Text goes in as text: a class may be called <script>. */
export function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}
