"use strict";
// {symbol, sheet, few, edges, groups: [{name, count, accuracy, mean, median, pictures: [[{place, alt}]]}]}
pmal.draw.robustness = (node, data) => {
  let chosen = 0;
  const main = pmal.el("div");
  const ridges = pmal.el("div", { class: "ridges", role: "group", "aria-label": "Class" });
  node.append(main, ridges);
  const buttons = data.groups.map((group, i) => pmal.ridge(data, group, i, () => {
    chosen = i;
    buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(j === i)));
    draw();
  }));
  ridges.append(...buttons);
  const draw = () => {
    main.replaceChildren();
    pmal.robustnessPlot(main, data, data.groups[chosen]);
    pmal.pictureStrip(main, data, data.groups[chosen]);
  };
  pmal.whenResized(main, draw);
};

pmal.ridge = (data, group, index, pick) => {
  const width = 140, height = 34, top = Math.max(...group.count, 1);
  const x = pmal.linear(0, group.count.length, 0, width);
  const picture = pmal.svg("svg", { viewBox: `0 0 ${width} ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true" });
  group.count.forEach((count, i) => {
    const tall = (count / top) * (height - 3);
    picture.append(pmal.svg("rect", { x: x(i) + 0.6, y: height - tall, width: x(1) - 1.2, height: tall, fill: index ? `var(${pmal.classColor(index - 1)})` : "var(--faint)", opacity: 0.8 }));
  });
  picture.append(pmal.svg("line", { class: "base", x1: 0, x2: width, y1: height, y2: height }));
  const name = pmal.el("div", { class: "name" }, pmal.el("span", {}, group.name), pmal.el("span", {}, pmal.percent(group.mean)));
  const button = pmal.el("button", { type: "button", "aria-pressed": String(index === 0), title: `${group.name}: median ${data.symbol} ${pmal.number(group.median)}, accuracy ${pmal.percent(group.mean)}` }, name, picture);
  button.addEventListener("click", pick);
  return button;
};

pmal.robustnessPlot = (node, data, group) => {
  const width = node.clientWidth || 320, last = data.edges.length - 1;
  const few = group.count.map((count) => count < data.few);
  const known = group.accuracy.filter((v, i) => v !== null && !few[i]);
  const floor = Math.max(0, Math.floor(Math.min(1, ...known) * 10 - 0.5) / 10);
  const top = Math.max(...group.count, 1);
  const lane = 92;
  const plot = pmal.plot(node, {
    width, height: 330, x: [data.edges[0], data.edges[last]], y: [0, top * 1.04], top: lane + 34, left: 46, right: 10,
    xLabel: `${data.symbol}: less robust ← → more robust`, label: `Distribution of ${data.symbol}, ${group.name}, with the accuracy in each interval`,
  });
  const accuracy = pmal.linear(floor, 1, lane, 16);
  plot.root.append(pmal.svg("text", { class: "axis-label", x: 0, y: 6 }, "accuracy in the interval"));
  plot.root.append(pmal.svg("text", { class: "axis-label", x: 0, y: lane + 22 }, "training images"));
  for (const tick of [floor, 1]) {
    plot.root.append(pmal.svg("line", { class: "grid", x1: plot.box.left, x2: plot.box.right, y1: accuracy(tick), y2: accuracy(tick) }));
    plot.root.append(pmal.svg("text", { x: plot.box.left - 7, y: accuracy(tick) + 4, "text-anchor": "end" }, `${Math.round(100 * tick)}%`));
  }
  const middle = data.edges.slice(0, last).map((edge, i) => (edge + data.edges[i + 1]) / 2);
  // A share of a handful of images says little: it stands apart, hollow, and the line passes it by.
  const firm = middle.map((_, i) => i).filter((i) => !few[i]);
  plot.root.append(pmal.svg("path", { class: "line", d: pmal.path(firm.map((i) => middle[i]), firm.map((i) => group.accuracy[i]), plot.x, accuracy), fill: "none", stroke: "var(--warm)", "stroke-width": 2 }));
  group.count.forEach((count, i) => {
    const left = plot.x(data.edges[i]) + 1, wide = plot.x(data.edges[i + 1]) - left - 1;
    plot.root.append(pmal.svg("rect", { class: "bar-r", x: left, width: wide, y: plot.y(count), height: plot.box.bottom - plot.y(count), rx: 2, fill: "var(--accent)", opacity: 0.75 }));
    if (group.accuracy[i] === null) return;
    const below = group.accuracy[i] < floor, at = accuracy(Math.max(floor, group.accuracy[i]));
    if (below) plot.root.append(pmal.svg("text", { x: plot.x(middle[i]), y: at - 8, "text-anchor": "middle" }, `${Math.round(100 * group.accuracy[i])}% ↓`));
    plot.root.append(pmal.svg("circle", { cx: plot.x(middle[i]), cy: at, r: 4, fill: few[i] ? "var(--paper)" : "var(--warm)", stroke: "var(--warm)", "stroke-width": 1.5 }));
  });
  plot.root.addEventListener("pointermove", (event) => {
    const at = event.clientX - plot.root.getBoundingClientRect().left;
    const i = data.edges.findIndex((edge, j) => j < last && at >= plot.x(edge) && at < plot.x(data.edges[j + 1]));
    if (i < 0) return pmal.tip.hide();
    pmal.tip.show(event, pmal.lines(["b", `${data.symbol} ${data.edges[i]} to ${data.edges[i + 1]}`], ["span", `${group.count[i].toLocaleString("en")} training images`], ["span", `accuracy ${pmal.percent(group.accuracy[i])}`]));
  });
  plot.root.addEventListener("pointerleave", pmal.tip.hide);
};

// Pictures below the interval that they lie in; where that is narrow, every second interval has some.
pmal.pictureStrip = (node, data, group) => {
  if (!group.pictures.some((some) => some.length)) return;
  const width = (node.clientWidth || 320) - 56, count = group.pictures.length;
  const every = Math.max(1, Math.ceil(28 / (width / count)));
  const side = Math.min(60, (width / count) * every - 4);
  const strip = pmal.el("div", { class: "strip" });
  strip.style.cssText = `margin:4px 10px 0 46px;grid-template-columns:repeat(${count}, minmax(0, 1fr))`;
  group.pictures.forEach((some, i) => {
    const column = pmal.el("div");
    if (i % every === 0) {
      column.style.cssText = `grid-column:${i + 1} / span ${Math.min(every, count - i)}`;
      for (const picture of some) {
        const tile = pmal.tile(data.sheet, picture.place, picture.alt);
        if (!tile) continue;
        tile.style.setProperty("--s", `${side}px`);
        tile.addEventListener("pointerenter", (event) => pmal.tip.show(event, pmal.el("div", { class: "row" }, pmal.tile(data.sheet, picture.place, picture.alt), pmal.lines(["span", picture.alt]))));
        tile.addEventListener("pointerleave", pmal.tip.hide);
        column.append(tile);
      }
      strip.append(column);
    }
  });
  node.append(strip);
};
