"use strict";
// Dots: {x, from, to, zero, signed, series: [{name, lane, color, ring}], groups: [{title, note, rows: [{name, note, dots: [[value, low, high]]}]}]}
// A row for each line of a table, in it a lane for each series. signed: differences, hollow where they have no interval.
pmal.draw.dots = (node, data) => {
  const off = new Set(), place = pmal.el("div", { class: "dots" });
  const key = (series, color) => pmal.mark(series, 7, 7, color, false);
  const draw = () => pmal.drawDots(place, data, off);
  if (data.series.length > 1) node.append(pmal.legend(data.series.map((s) => s.name), off, draw, data.series, key));
  node.append(place);
  pmal.whenResized(place, draw);
};

// The shape goes with the color, for those who do not see it.
pmal.mark = (series, x, y, color, hollow) => {
  const r = series.ring ? 5 : 4;
  const look = series.ring || hollow ? { fill: hollow ? "var(--paper)" : "none", stroke: color, "stroke-width": 1.6 } : { fill: color };
  const shape = pmal.SHAPES[series.lane % pmal.SHAPES.length];
  if (shape === "circle") return pmal.svg("circle", { class: "dot", cx: x, cy: y, r, ...look });
  const [a, b] = [r * 0.9, r * 1.25];
  const corners = { square: [[-a, -a], [a, -a], [a, a], [-a, a]], diamond: [[0, -b], [b, 0], [0, b], [-b, 0]], triangle: [[0, -b], [b, a], [-b, a]] }[shape];
  return pmal.svg("path", { class: "dot", d: `M${corners.map(([i, j]) => `${(x + i).toFixed(1)},${(y + j).toFixed(1)}`).join("L")}Z`, ...look });
};

pmal.drawDots = (node, data, off) => {
  node.replaceChildren();
  node.classList.toggle("narrow", node.clientWidth < NARROW);
  const rows = data.groups.flatMap((group) => group.rows);
  const scale = pmal.dotScale(rows, data);
  const lanes = [...new Set(data.series.filter((_, i) => !off.has(i)).map((s) => s.lane))].sort((a, b) => a - b);
  const axis = () => node.append(pmal.el("div", { class: "dots-row" }, pmal.el("div"), pmal.dotAxis(node, scale, data)));
  if (rows.length > 8) axis();
  for (const group of data.groups) {
    if (group.title) node.append(pmal.el("h4", { class: "dots-group" }, group.title, pmal.el("small", {}, group.note)));
    for (const row of group.rows) {
      const words = pmal.el("div", { class: "dots-name" }, pmal.el("span", {}, row.name), pmal.el("small", {}, row.note));
      node.append(pmal.el("div", { class: "dots-row" }, words, pmal.dotLanes(node, row, data, { scale, lanes, off })));
    }
  }
  axis();
};

pmal.dotScale = (rows, data) => {
  const values = rows.flatMap((row) => row.dots).filter(Boolean).flat();
  let [low, high] = pmal.extent([values, data.zero ? [0] : []]);
  const pad = (high - low) * 0.04;
  [low, high] = [data.from ?? low - pad, data.to ?? high + pad];
  return (width) => pmal.linear(low, high, 10, width - 10);
};

// The names stand beside the lanes, or above them where there is no room.
const NARROW = 560;
pmal.dotWidth = (node) => (node.clientWidth < NARROW ? node.clientWidth : node.clientWidth * 0.64) || 320;

pmal.dotLanes = (node, row, data, { scale, lanes, off }) => {
  const step = 13, width = pmal.dotWidth(node), height = Math.max(40, lanes.length * step + 12), x = scale(width);
  const top = (height - lanes.length * step) / 2; // as tall as the words beside it
  const text = (dot) => pmal.dotText(dot, data);
  const words = data.series.map((s, i) => [s.name, row.dots[i]]).filter(([, dot]) => dot).map(([name, dot]) => `${name}: ${text(dot)}`);
  const root = pmal.svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${row.name}, ${row.note}: ${words.join(", ") || "nothing"}` });
  for (const tick of x.ticks(width / 90)) root.append(pmal.svg("line", { class: data.zero && tick === 0 ? "base" : "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height }));
  data.series.forEach((series, i) => {
    const dot = row.dots[i];
    if (!dot || off.has(i)) return;
    const [value, low, high] = dot, y = top + step * (lanes.indexOf(series.lane) + 0.5), color = pmal.seriesColor(series, i);
    if (low !== null) root.append(pmal.svg("line", { class: "whisker", x1: x(low), x2: x(high), y1: y, y2: y, stroke: color, "stroke-width": 2, opacity: 0.55, "stroke-linecap": "round" }));
    root.append(pmal.mark(series, x(value), y, color, data.signed && low === null));
  });
  root.addEventListener("pointermove", (event) => pmal.tip.show(event, pmal.lines(["b", row.name], ["dim", row.note], ...words.map((word) => ["span", word]))));
  root.addEventListener("pointerleave", pmal.tip.hide);
  return root;
};

pmal.dotText = ([value, low, high], data) => {
  const sign = (v) => (data.signed && v > 0 ? `+${pmal.number(v)}` : pmal.number(v));
  return low === null ? sign(value) : `${sign(value)} (${sign(low)} to ${sign(high)})`;
};

pmal.dotAxis = (node, scale, data) => {
  const width = pmal.dotWidth(node), x = scale(width);
  const root = pmal.svg("svg", { viewBox: `0 0 ${width} 38`, height: 38, "aria-hidden": "true" });
  for (const tick of x.ticks(width / 90)) root.append(pmal.svg("text", { x: x(tick), y: 14, "text-anchor": "middle" }, pmal.dotText([tick, null], data)));
  root.append(pmal.svg("text", { class: "axis-label", x: width / 2, y: 32, "text-anchor": "middle" }, data.x));
  return root;
};
