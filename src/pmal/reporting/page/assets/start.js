"use strict";
// Figures are drawn for the width they have, and again when it or the colors change.
pmal.redraws = [];
pmal.whenResized = (node, draw) => {
  let width = -1;
  const check = () => {
    if (node.clientWidth === width) return;
    width = node.clientWidth;
    draw();
  };
  pmal.redraws.push(draw);
  check();
  new ResizeObserver(() => requestAnimationFrame(check)).observe(node);
};

for (const figure of document.querySelectorAll("figure[data-draw]")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const node = figure.querySelector(".plot");
  node.replaceChildren();
  pmal.draw[figure.dataset.draw](node, data);
}

for (const query of ["(prefers-color-scheme: dark)", "print"])
  matchMedia(query).addEventListener("change", () => pmal.redraws.forEach((draw) => draw()));
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.dataset.was = one.open; one.open = true; }));
addEventListener("afterprint", () => document.querySelectorAll("details").forEach((one) => { one.open = one.dataset.was === "true"; }));
addEventListener("scroll", pmal.tip.hide, { passive: true });

const links = [...document.querySelectorAll("nav a")];
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting)
    links.forEach((link) => (link.hash === `#${entry.target.id}` ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
}, { rootMargin: "-20% 0px -70% 0px" });
document.querySelectorAll("main section").forEach((section) => watcher.observe(section));
