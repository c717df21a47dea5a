"use strict";
// Points by keyboard. A canvas has nothing to focus, so one element lies over the point that is chosen, and is moved.
pmal.WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

pmal.pointOf = (panel) => pmal.el("div", {
  // An application gets the arrow keys that a screen reader would keep for itself.
  class: "point", tabindex: "0", role: "application", "aria-roledescription": "point", "aria-label": `${panel.title}: arrow keys go from image to image`,
});

pmal.putPoint = (view) => {
  const i = view.current ?? pmal.shownPoints(view)[0];
  const [x, y] = i === undefined ? [0, 0] : view.at(i);
  Object.assign(view.point.style, { left: `${x}px`, top: `${y}px` });
};

pmal.shownPoints = (view) => view.data.kind.map((_, i) => i).filter((i) => !pmal.hidden(view, i));

// The nearest one in this direction: in the quarter around it, else anywhere on that side.
pmal.towards = (view, from, [dx, dy]) => {
  const [x, y] = view.at(from);
  let best = from, least = Infinity;
  for (const i of pmal.shownPoints(view)) {
    const [px, py] = view.at(i), along = (px - x) * dx + (py - y) * dy, aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
    const far = along + aside + (aside > along ? 1e6 : 0);
    if (i !== from && along > 0 && far < least) { least = far; best = i; }
  }
  return best;
};

pmal.nextPoint = (view, key) => {
  const shown = pmal.shownPoints(view), at = shown.indexOf(view.current);
  if (!shown.length) return null;
  const listed = { Home: 0, End: shown.length - 1, PageDown: Math.min(at + 1, shown.length - 1), PageUp: Math.max(at - 1, 0) };
  if (key in listed) return shown[listed[key]];
  if (!(key in pmal.WAYS)) return null;
  return at < 0 ? shown[0] : pmal.towards(view, view.current, pmal.WAYS[key]);
};

pmal.choosePoint = (view, views, i) => {
  view.current = i;
  pmal.markPoint(views, i);
  const words = `${view.data.text[i].filter(Boolean).join(", ")}`, box = view.canvas.getBoundingClientRect(), [x, y] = view.at(i);
  view.point.setAttribute("aria-label", words);
  document.getElementById("spoken").textContent = words;
  pmal.showPoint({ clientX: box.left + x, clientY: box.top + y }, view, i);
};

pmal.followKeys = (view, views) => {
  const leave = () => { pmal.tip.hide(); pmal.markPoint(views, -1); };
  view.point.addEventListener("focus", () => {
    const i = pmal.hidden(view, view.current ?? -1) ? undefined : view.current;
    const first = i ?? pmal.shownPoints(view)[0];
    if (first !== undefined) pmal.choosePoint(view, views, first);
  });
  view.point.addEventListener("blur", leave);
  view.point.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return leave();
    const next = pmal.nextPoint(view, event.key);
    if (next === null) return;
    event.preventDefault();
    pmal.choosePoint(view, views, next);
  });
};
