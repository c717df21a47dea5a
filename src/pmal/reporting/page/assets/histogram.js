"use strict";
// How a score spreads over known images (areas) and unknown ones (upright lines), with a threshold that can be moved.
// histogram: {edges, known, unknown, threshold}; accepted: {at, known, unknown, start}, shares accepted at thresholds.
pmal.HATCH = 4;

pmal.histogram = (place, score) => {
  const h = score.histogram, groups = ["known", "unknown"].filter((name) => h[name]);
  place.append(pmal.heading("Distribution", "share of images per interval"));
  // The square root keeps a tail visible next to a peak.
  const top = Math.max(...groups.flatMap((name) => h[name]));
  const plot = pmal.plot(place, {
    width: place.clientWidth || 320, height: 270, x: [h.edges[0], h.edges[h.edges.length - 1]], y: [0, Math.sqrt(top) * 1.12],
    xLabel: `${score.name} → more unknown`, label: `Histogram of the score ${score.name}`, left: 14, format: { y: () => "" },
  });
  const heightAt = (name, i) => plot.y(Math.sqrt(h[name][i]));
  for (const name of groups) {
    const outline = h[name].map((_, i) => `V${heightAt(name, i).toFixed(1)}H${plot.x(h.edges[i + 1]).toFixed(1)}`).join("");
    const lines = name === "known" ? "" : pmal.hatch(plot, h, (i) => heightAt(name, i));
    plot.root.append(pmal.svg("path", { class: `area ${name}`, d: `M${plot.box.left},${plot.box.bottom}${outline}V${plot.box.bottom}Z${lines}` }));
  }
  pmal.histogramKey(plot, groups);
  pmal.hoverBars(plot, h, groups);
  pmal.thresholdSlider(place, score, plot);
};

// Lines and not a color: gray and blue look alike to some, and what lies behind is seen.
pmal.hatch = (plot, h, heightOf) => {
  let lines = "";
  for (let x = plot.box.left + pmal.HATCH / 2; x < plot.box.right; x += pmal.HATCH) {
    const i = Math.min(h.unknown.length - 1, Math.floor(((x - plot.box.left) / (plot.box.right - plot.box.left)) * h.unknown.length));
    if (h.unknown[i]) lines += `M${x},${plot.box.bottom}V${heightOf(i).toFixed(1)}`;
  }
  return lines;
};

pmal.histogramKey = (plot, groups) => groups.forEach((name, i) => {
  const x = plot.box.right - 74, y = 22 + 18 * i;
  const lines = name === "known" ? "" : `M${x + 4},${y}v11m4,0v-11`;
  plot.root.append(pmal.svg("path", { class: `area ${name} key`, d: `M${x},${y}h12v11h-12Z${lines}` }));
  plot.root.append(pmal.svg("text", { x: x + 17, y: y + 10 }, name));
});

pmal.hoverBars = (plot, h, groups) => {
  plot.root.addEventListener("pointermove", (event) => {
    const at = event.clientX - plot.root.getBoundingClientRect().left;
    const i = h.edges.findIndex((edge, j) => j + 1 < h.edges.length && at >= plot.x(edge) && at < plot.x(h.edges[j + 1]));
    if (i < 0) return pmal.tip.hide();
    pmal.tip.show(event, pmal.lines(["b", `${pmal.number(h.edges[i])} to ${pmal.number(h.edges[i + 1])}`], ...groups.map((name) => ["span", `${name}: ${pmal.percent(h[name][i])}`])));
  });
  plot.root.addEventListener("pointerleave", pmal.tip.hide);
};

pmal.thresholdSlider = (place, score, plot) => {
  const { accepted } = score;
  if (!accepted) return place.append(pmal.el("p", { class: "note" }, "There is no single threshold to move."));
  const line = pmal.svg("line", { class: "threshold", y1: plot.box.top - 8, y2: plot.box.bottom });
  const tag = pmal.svg("text", { y: plot.box.top - 10 });
  const slider = pmal.el("input", { type: "range", min: 0, max: accepted.at.length - 1, step: 1, "aria-label": `Threshold of ${score.name}` });
  const shares = pmal.el("div"), reset = pmal.el("button", { type: "button" }, "back to the stored threshold");
  const move = (i) => {
    score.moved = i; // kept, for when the figure is drawn again
    const at = plot.x(accepted.at[i]), end = at > plot.box.right - 90;
    for (const [name, value] of Object.entries({ x1: at, x2: at })) line.setAttribute(name, value);
    for (const [name, value] of Object.entries({ x: at + (end ? -5 : 5), "text-anchor": end ? "end" : "start" })) tag.setAttribute(name, value);
    tag.textContent = `threshold ${pmal.number(accepted.at[i])}`;
    const words = pmal.shareWords(accepted, i);
    shares.replaceChildren(...words.map(([name, text]) => pmal.el("p", {}, pmal.el("strong", {}, name), `: ${text}`)));
    slider.value = i;
    slider.setAttribute("aria-valuetext", [tag.textContent, ...words.map((pair) => pair.join(" "))].join(", "));
    reset.hidden = i === accepted.start;
  };
  slider.addEventListener("input", () => move(Number(slider.value)));
  reset.addEventListener("click", () => { move(accepted.start); slider.focus(); });
  plot.root.append(line, tag);
  place.append(pmal.el("div", { class: "slider" }, slider, shares, reset));
  move(score.moved ?? accepted.start);
};

pmal.shareWords = (accepted, i) => ["known", "unknown"].filter((name) => accepted[name]).map((name) => {
  const share = Math.round(1000 * accepted[name][i]) / 1000; // rounded first: the two add up to 100 %
  return [name, `${pmal.percent(share)} accepted, ${pmal.percent(1 - share)} rejected`];
});
