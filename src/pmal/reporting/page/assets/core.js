"use strict";
// What the figures share. Text from the data enters the page as text only, never as markup.
const pmal = { draw: {} };

pmal.el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

pmal.svg = (tag, attributes = {}, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

pmal.color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
pmal.COLORS = 7;
pmal.classColor = (k) => `--c${k % pmal.COLORS}`;
pmal.percent = (share, digits = 1) => (share === null ? "–" : `${(100 * share).toFixed(digits)} %`);

pmal.number = (value) => {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(1).replace("e-", "e−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
};

// A scale maps a number to a place on the screen; ticks are where round numbers lie.
pmal.linear = (low, high, from, to) => {
  const span = high - low || 1;
  const scale = (value) => from + ((value - low) / span) * (to - from);
  scale.ticks = (count) => {
    const rough = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  };
  return scale;
};

pmal.log = (low, high, from, to) => {
  const line = pmal.linear(Math.log10(low), Math.log10(high), from, to);
  const scale = (value) => line(Math.log10(Math.max(value, low)));
  scale.ticks = (count) => {
    const found = [];
    const decades = Math.log10(high / low);
    const steps = decades > 2.5 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 5];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const m of steps) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) found.push(Number((m * 10 ** p).toPrecision(3)));
    return found.length > 1 ? found : [low, high];
  };
  return scale;
};

// A drawing with axes: `plot.x` and `plot.y` are its scales, `plot.root` takes what is drawn.
pmal.plot = (parent, { width, height, x, y, xLabel, yLabel, xLog, yLog, xWhole, xTicks, format = {}, label, left = 46, right = 10, top = 22 }) => {
  const box = { left, right: width - right, top, bottom: height - (xLabel ? 40 : 24) };
  const root = pmal.svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label || "" });
  const make = { x: xLog ? pmal.log : pmal.linear, y: yLog ? pmal.log : pmal.linear };
  const scale = { x: make.x(x[0], x[1], box.left, box.right), y: make.y(y[0], y[1], box.bottom, box.top) };
  for (const tick of scale.y.ticks(4)) {
    const at = scale.y(tick);
    root.append(pmal.svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
    root.append(pmal.svg("text", { x: box.left - 7, y: at + 4, "text-anchor": "end" }, (format.y || pmal.number)(tick)));
  }
  root.append(pmal.svg("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  for (const tick of xTicks || scale.x.ticks(Math.max(2, Math.floor(width / 80)))) {
    if (xWhole && !Number.isInteger(tick)) continue;
    const at = scale.x(tick);
    root.append(pmal.svg("text", { x: at, y: box.bottom + 16, "text-anchor": "middle" }, (format.x || pmal.number)(tick)));
  }
  if (xLabel) root.append(pmal.svg("text", { class: "axis-label", x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  if (yLabel) root.append(pmal.svg("text", { class: "axis-label", x: 0, y: 10 }, yLabel));
  parent.append(root);
  return { root, box, x: scale.x, y: scale.y };
};

pmal.path = (xs, ys, x, y) => {
  let text = "", pen = "M";
  xs.forEach((value, i) => {
    if (value === null || ys[i] === null) { pen = "M"; return; }
    text += `${pen}${x(value).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    pen = "L";
  });
  return text;
};

pmal.tile = (sheet, place, alt) => {
  if (place === null || place === undefined) return null;
  const columns = pmal.sheetColumns(sheet);
  const node = pmal.el("span", { class: `tile sheet-${sheet}`, role: "img", "aria-label": alt });
  node.style.setProperty("--c", place % columns);
  node.style.setProperty("--r", Math.floor(place / columns));
  return node;
};

pmal.sheetColumns = (sheet) => {
  pmal.known = pmal.known || {};
  if (!(sheet in pmal.known)) {
    const probe = pmal.el("i", { class: `sheet-${sheet}`, hidden: "" });
    document.body.append(probe);
    pmal.known[sheet] = Number(getComputedStyle(probe).getPropertyValue("--columns")) || 1;
    probe.remove();
  }
  return pmal.known[sheet];
};

pmal.tip = {
  show(event, ...children) {
    const tip = document.getElementById("tip");
    tip.replaceChildren(...children.filter(Boolean));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const beside = event.clientX + 16 + width < innerWidth ? event.clientX + 16 : event.clientX - 16 - width;
    const above = Math.min(event.clientY + 14, innerHeight - height - 8);
    tip.style.transform = `translate(${Math.max(8, beside)}px, ${Math.max(8, above)}px)`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

pmal.lines = (...lines) => {
  const node = pmal.el("div");
  lines.filter(Boolean).forEach(([tag, text], i) => {
    if (i) node.append(pmal.el("br"));
    node.append(tag === "b" ? pmal.el("b", {}, text) : pmal.el("span", tag === "dim" ? { class: "dim" } : {}, text));
  });
  return node;
};

// Buttons of which one is pressed.
pmal.choice = (names, chosen, pick, label) => {
  const row = pmal.el("div", { class: "controls", role: "group", "aria-label": label });
  const buttons = names.map((name, i) => {
    const button = pmal.el("button", { type: "button", "aria-pressed": String(i === chosen), title: name }, name);
    button.addEventListener("click", () => { row.press(i); pick(i); });
    return button;
  });
  row.press = (i) => buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
  row.append(...buttons);
  return row;
};
