"use strict";
// Lines: {shared, panels: [{title, note, x, y, xLog, yLog, ticks, series: [{name, x, y, low, high, dash, color}]}]} side by side.
// shared: all panels have the same series, and one legend.
pmal.draw.lines = (node, data) => {
  const panels = pmal.el("div", { class: "panels" }), redraws = [];
  const legend = (series, off, redraw) => pmal.legend(series.map((s) => s.name), off, redraw, series);
  const common = new Set();
  if (data.shared) node.append(legend(data.panels[0].series, common, () => redraws.forEach((draw) => draw())));
  node.append(panels);
  for (const panel of data.panels) {
    const place = pmal.el("div", { class: "panel" }, pmal.el("h3", {}, panel.title, panel.note ? pmal.el("small", {}, panel.note) : null));
    panels.append(place);
    const off = data.shared ? common : new Set();
    const canvas = pmal.el("div");
    const draw = () => pmal.drawLines(canvas, panel, off);
    if (!data.shared) place.append(legend(panel.series, off, draw));
    place.append(canvas);
    redraws.push(draw);
    pmal.whenResized(canvas, draw);
  }
};

pmal.seriesColor = (series, i) => `var(${pmal.classColor(series && series.color !== undefined ? series.color : i)})`;

pmal.legend = (names, off, redraw, series = [], symbol = pmal.lineKey) => {
  const row = pmal.el("div", { class: "controls legend", role: "group", "aria-label": "What is shown" });
  names.forEach((name, i) => {
    const key = pmal.svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" });
    key.append(symbol(series[i], pmal.seriesColor(series[i], i)));
    const button = pmal.el("button", { type: "button", "aria-pressed": "true", title: name }, key, pmal.el("span", {}, name));
    button.addEventListener("click", () => {
      off.has(i) ? off.delete(i) : off.add(i);
      button.setAttribute("aria-pressed", String(!off.has(i)));
      redraw();
    });
    row.append(button);
  });
  return row;
};

pmal.lineKey = (series, stroke) => pmal.svg("line", { x1: 0, x2: 14, y1: 7, y2: 7, "stroke-width": 3, stroke, ...(series && series.dash ? { "stroke-dasharray": "3 3" } : {}) });

pmal.extent = (values, log) => {
  const found = values.flat().filter((v) => v !== null && v !== undefined && (!log || v > 0));
  if (!found.length) return log ? [0.1, 1] : [0, 1];
  const low = Math.min(...found), high = Math.max(...found);
  if (log) return [low * 0.85, high * 1.15];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
};

pmal.drawLines = (node, panel, off) => {
  node.replaceChildren();
  const shown = panel.series.map((s, i) => ({ ...s, color: pmal.seriesColor(s, i) })).filter((_, i) => !off.has(i));
  const every = panel.series;
  let [low, high] = pmal.extent(every.map((s) => [...s.y, ...(s.low || []), ...(s.high || [])]), panel.yLog);
  if (!panel.yLog) { if (panel.zero) low = Math.min(0, low); const pad = (high - low) * 0.06; high += pad; if (!panel.zero) low -= pad; }
  const plot = pmal.plot(node, {
    width: node.clientWidth || 320, height: 240, x: pmal.extent(every.map((s) => s.x), panel.xLog), y: [low, high],
    xLabel: panel.x, yLabel: panel.y, xLog: panel.xLog, yLog: panel.yLog, xWhole: panel.xWhole, xTicks: panel.ticks, label: `${panel.title}: ${panel.y} over ${panel.x}`,
  });
  for (const s of shown) {
    if (s.low) plot.root.append(pmal.svg("path", { d: pmal.band(s, plot), fill: s.color, opacity: 0.14 }));
    plot.root.append(pmal.svg("path", { class: "line", d: pmal.path(s.x, s.y, plot.x, plot.y), fill: "none", stroke: s.color, "stroke-width": 2, "stroke-linejoin": "round", ...(s.dash ? { "stroke-dasharray": "5 4" } : {}) }));
    if (s.x.length < 16) s.x.forEach((x, i) => s.y[i] !== null && plot.root.append(pmal.svg("circle", { cx: plot.x(x), cy: plot.y(s.y[i]), r: 3, fill: s.color })));
  }
  pmal.hoverLines(plot, shown, panel);
};

// From low to high along every stretch that has both.
pmal.band = (s, plot) => {
  const runs = [[]];
  s.x.forEach((_, i) => (s.low[i] === null || s.high[i] === null ? runs.push([]) : runs.at(-1).push(i)));
  return runs.filter((run) => run.length > 1).map((run) => {
    const back = [...run].reverse(), pick = (values, order) => order.map((i) => values[i]);
    return `${pmal.path([...pick(s.x, run), ...pick(s.x, back)], [...pick(s.high, run), ...pick(s.low, back)], plot.x, plot.y)}Z`;
  }).join("");
};

pmal.hoverLines = (plot, shown, panel) => {
  const mark = pmal.svg("line", { class: "base", y1: plot.box.top, y2: plot.box.bottom, visibility: "hidden", "stroke-dasharray": "2 3" });
  plot.root.append(mark);
  const all = [...new Set(shown.flatMap((s) => s.x))].sort((a, b) => a - b);
  plot.root.addEventListener("pointermove", (event) => {
    if (!all.length) return;
    const at = event.clientX - plot.root.getBoundingClientRect().left;
    const x = all.reduce((best, v) => (Math.abs(plot.x(v) - at) < Math.abs(plot.x(best) - at) ? v : best), all[0]);
    mark.setAttribute("x1", plot.x(x)); mark.setAttribute("x2", plot.x(x)); mark.setAttribute("visibility", "visible");
    const values = shown.filter((s) => s.x.includes(x)).map((s) => ["span", `${s.name}: ${pmal.number(s.y[s.x.indexOf(x)])}`]);
    pmal.tip.show(event, pmal.lines(["b", `${panel.x} ${pmal.number(x)}`], ...values));
  });
  plot.root.addEventListener("pointerleave", () => { mark.setAttribute("visibility", "hidden"); pmal.tip.hide(); });
};

// Scores: {chosen, scores: [{name, about, histogram, accepted, curve, figures, beside: {name, curve, figures}}]}
pmal.draw.scores = (node, data) => {
  let score = data.scores[data.chosen];
  const about = pmal.el("p", { class: "note" });
  const panels = pmal.el("div", { class: "panels" });
  const pick = (i) => { score = data.scores[i]; draw(); };
  node.append(pmal.choice(data.scores.map((s) => s.name), data.chosen, pick, "Score"), panels, about);
  const draw = () => {
    panels.replaceChildren();
    about.textContent = score.about;
    // All panels first: each is as wide as the others leave it.
    const places = ["", ...(score.curve ? ["", ""] : [])].map(() => panels.appendChild(pmal.el("div", { class: "panel" })));
    pmal.histogram(places[0], score);
    if (score.curve) {
      pmal.curve(places[1], score, "known", "ROC", "auroc", "known accepted");
      pmal.curve(places[2], score, "correct", "OSCR", "oscr", "known accepted and named correctly");
    }
  };
  pmal.whenResized(node, draw);
};

pmal.heading = (title, note) => pmal.el("h3", {}, title, " ", pmal.el("small", {}, note));

pmal.curve = (place, score, column, title, figure, yLabel) => {
  const own = score.figures ? pmal.percent(score.figures[figure]) : "";
  place.append(pmal.heading(title, `area ${own}`));
  const share = (value) => `${Math.round(100 * value)}%`;
  const plot = pmal.plot(place, {
    width: place.clientWidth || 320, height: 270, x: [0, 1], y: [0, 1], xLabel: "unknown accepted", yLabel, format: { x: share, y: share },
    label: `${title} of the score ${score.name}, area ${own}`,
  });
  const draw = (curve, style) => plot.root.append(pmal.svg("path", { class: "line", d: pmal.path(curve.unknown, curve[column], plot.x, plot.y), fill: "none", ...style }));
  const lines = [[score.title, score.curve, { stroke: "var(--accent)", "stroke-width": 2.4 }, own]];
  if (score.beside) lines.unshift([score.beside.name, score.beside.curve, { stroke: "var(--warm)", "stroke-width": 1.8, "stroke-dasharray": "5 4" }, pmal.percent(score.beside.figures[figure])]);
  lines.forEach(([, curve, style]) => draw(curve, style));
  const low = score.curve[column].at(-1) < 0.6; // then the lower corner is where the curves are
  [...lines].reverse().forEach(([name, , style, area], i) => {
    const y = low ? plot.box.top + 16 + 18 * i : plot.box.bottom - 14 - 18 * (lines.length - 1 - i), x = plot.box.right - 4;
    const text = pmal.svg("text", { x: x - 24, y, "text-anchor": "end" }, `${name} ${area}`);
    plot.root.append(text, pmal.svg("line", { x1: x - 18, x2: x, y1: y - 4, y2: y - 4, ...style }));
  });
};
