"use strict";
// {classes, panels: [{title, note, x, y}]}, and of every point: kind (0 known, 1 unknown, 2 prototype), label, sheet,
// place, text [title, answer, file].
// Class k: color k mod 7, and another shape for every seven; unknown is a gray cross, a prototype a star in its color.
// The cross belongs to unknown alone: colors of classes and gray look alike to some.
pmal.SHAPES = ["circle", "square", "triangle", "diamond"];
pmal.shape = (k) => pmal.SHAPES[Math.floor(k / pmal.COLORS) % pmal.SHAPES.length];

pmal.trace = (pen, shape, x, y, r) => {
  pen.beginPath();
  if (shape === "circle") pen.arc(x, y, r, 0, 7);
  else if (shape === "cross") for (const turn of [-1, 1]) { pen.moveTo(x - r, y - r * turn); pen.lineTo(x + r, y + r * turn); }
  else if (shape === "square") pen.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else {
    const points = shape === "star" ? 10 : shape === "triangle" ? 3 : 4;
    for (let i = 0; i < points; i++) {
      const far = shape === "star" && i % 2 ? r * 0.45 : shape === "star" ? r : r * 1.2;
      const turn = -Math.PI / 2 + (2 * Math.PI * i) / points;
      pen.lineTo(x + far * Math.cos(turn), y + far * Math.sin(turn));
    }
    pen.closePath();
  }
};

pmal.draw.scatter = (node, data) => {
  const entries = pmal.scatterEntries(data), off = new Set();
  const panels = pmal.el("div", { class: "panels" });
  const views = data.panels.map((panel) => {
    const canvas = pmal.el("canvas", { role: "img", "aria-label": `${panel.title}: ${data.label_text}` });
    const view = { panel, canvas, data, off, near: -1, point: pmal.pointOf(panel) };
    const place = pmal.el("div", { class: "points" }, canvas, view.point);
    panels.append(pmal.el("div", { class: "panel" }, pmal.el("h3", {}, panel.title, panel.note ? pmal.el("small", {}, panel.note) : null), place));
    return view;
  });
  const redraw = () => views.forEach(pmal.drawScatter);
  node.append(pmal.scatterLegend(entries, off, redraw), panels);
  for (const view of views) { pmal.followPointer(view, views); pmal.followKeys(view, views); }
  pmal.whenResized(node, redraw);
};

// What can be shown or hidden: every class that occurs, the unknown, the prototypes.
pmal.scatterEntries = (data) => {
  const entries = data.classes.map((name, k) => ({ key: k, name, shape: pmal.shape(k), color: pmal.classColor(k) }));
  if (data.kind.includes(1)) entries.push({ key: "unknown", name: "unknown", shape: "cross", color: "--unknown" });
  if (data.kind.includes(2)) entries.push({ key: "prototypes", name: "prototypes", shape: "star", color: "--ink" });
  return entries;
};

pmal.hidden = (view, i) => {
  const { kind, label } = view.data;
  if (kind[i] === 1) return view.off.has("unknown");
  return view.off.has(label[i]) || (kind[i] === 2 && view.off.has("prototypes"));
};

pmal.scatterLegend = (entries, off, redraw) => {
  const row = pmal.el("div", { class: "controls legend", role: "group", "aria-label": "Classes shown" });
  for (const entry of entries) {
    const key = pmal.svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" });
    const parts = { circle: ["circle", { cx: 7, cy: 7, r: 5 }], square: ["rect", { x: 2, y: 2, width: 10, height: 10 }], triangle: ["path", { d: "M7,1.5L13,12H1Z" }], diamond: ["path", { d: "M7,1L13,7L7,13L1,7Z" }], cross: ["path", { d: "M2.5,2.5l9,9m0,-9l-9,9" }], star: ["path", { d: "M7,.5l1.9,4.4 4.6,.4-3.5,3.1 1.1,4.6L7,10.5 2.9,13 4,8.4.5,5.3l4.6-.4Z" }] };
    const [tag, form] = parts[entry.shape], color = `var(${entry.color})`;
    key.append(pmal.svg(tag, { ...form, ...(entry.shape === "cross" ? { stroke: color, "stroke-width": 2 } : { fill: color }) }));
    const button = pmal.el("button", { type: "button", "aria-pressed": "true", title: entry.name }, key, pmal.el("span", {}, entry.name));
    button.addEventListener("click", () => {
      off.has(entry.key) ? off.delete(entry.key) : off.add(entry.key);
      button.setAttribute("aria-pressed", String(!off.has(entry.key)));
      redraw();
    });
    row.append(button);
  }
  return row;
};

pmal.drawScatter = (view) => {
  const { canvas, panel, data } = view, ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth || 320, height = Math.round(Math.min(width * 0.92, 520)), pad = 14;
  canvas.style.height = `${height}px`;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const [x0, x1] = pmal.extent([panel.x]), [y0, y1] = pmal.extent([panel.y]);
  const zoom = Math.min((width - 2 * pad) / (x1 - x0), (height - 2 * pad) / (y1 - y0));
  view.at = (i) => [width / 2 + (panel.x[i] - (x0 + x1) / 2) * zoom, height / 2 - (panel.y[i] - (y0 + y1) / 2) * zoom];
  const colors = { unknown: pmal.color("--unknown"), ink: pmal.color("--ink"), card: pmal.color("--card") };
  const byClass = data.classes.map((_, k) => pmal.color(pmal.classColor(k)));
  const small = data.kind.length > 1500 || width < 400 ? 2.2 : 2.8;
  const star = small * (data.kind.filter((kind) => kind === 2).length > 100 ? 2.3 : 2.9);
  for (const kind of [1, 0, 2]) data.kind.forEach((one, i) => {
    if (one !== kind || pmal.hidden(view, i)) return;
    const [x, y] = view.at(i), k = data.label[i];
    pmal.trace(pen, ["", "cross", "star"][kind] || pmal.shape(k), x, y, kind === 2 ? star : small);
    pen.globalAlpha = kind === 2 ? 1 : 0.8;
    if (kind === 1) { pen.strokeStyle = colors.unknown; pen.lineWidth = 1.2; pen.stroke(); return; }
    pen.fillStyle = byClass[k];
    pen.fill();
    if (kind === 2) { pen.strokeStyle = colors.ink; pen.lineWidth = 1.1; pen.lineJoin = "round"; pen.stroke(); }
  });
  pen.globalAlpha = 1;
  if (view.near >= 0 && !pmal.hidden(view, view.near)) {
    const [x, y] = view.at(view.near);
    pmal.trace(pen, "circle", x, y, 9);
    pen.strokeStyle = colors.ink; pen.lineWidth = 2; pen.stroke();
  }
  pmal.putPoint(view);
};

pmal.nearest = (view, event) => {
  const place = view.canvas.getBoundingClientRect();
  const x = event.clientX - place.left - 1, y = event.clientY - place.top - 1;
  let best = -1, least = 18 ** 2;
  view.data.kind.forEach((_, i) => {
    if (pmal.hidden(view, i)) return;
    const [px, py] = view.at(i), far = (px - x) ** 2 + (py - y) ** 2;
    if (far < least) { least = far; best = i; }
  });
  return best;
};

// The same image is marked in every panel, so that one sees where it went.
pmal.markPoint = (views, i) => views.forEach((view) => { view.near = i; pmal.drawScatter(view); });

pmal.showPoint = (place, { data }, i) => {
  const [title, answer, file] = data.text[i];
  pmal.tip.show(place, pmal.el("div", { class: "row" }, pmal.tile(data.sheet[i], data.place[i], title), pmal.lines(["b", title], ["span", answer], ["dim", file])));
};

pmal.followPointer = (view, views) => {
  const move = (event) => {
    const near = pmal.nearest(view, event);
    if (near !== view.near) pmal.markPoint(views, near);
    if (near < 0) return pmal.tip.hide();
    pmal.showPoint(event, view, near);
  };
  view.canvas.addEventListener("pointermove", move);
  view.canvas.addEventListener("pointerdown", move);
  view.canvas.addEventListener("pointerleave", () => { pmal.tip.hide(); pmal.markPoint(views, -1); });
};
