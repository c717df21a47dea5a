// Right answers that somebody gives to images of this visit, as the table that `pmal update` takes.

import { element } from "./scale.js";

const UNKNOWN = "unknown";
const $ = (id) => document.getElementById(id);

// As pmal writes cells: no spreadsheet takes such text for a formula.
const plain = (text) => (/^'*[=+\-@\t\r]/.test(text) ? `'${text}` : text);
const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** The list of right answers for the image that is shown. */
export function offerTruth(model, item, changed) {
  const names = [...new Set([...model.classes.map((about) => about.name), UNKNOWN])];
  const choice = $("truth");
  choice.replaceChildren(new Option("not said", ""), ...names.map((name) => new Option(name, name)));
  choice.value = names.includes(item.truth) ? item.truth : "";
  choice.onchange = () => {
    item.truth = choice.value;
    changed();
  };
}

/** How many right answers there are, and the button that gives them away. */
export function showCorrections(items, name) {
  const told = items.filter((item) => item.truth);
  $("corrections").hidden = !told.length;
  if (!told.length) return;
  $("corrections-text").replaceChildren(
    `${told.length} right answer${told.length > 1 ? "s" : ""} given. From the folder of the images: `,
    element("code", "", `pmal update ${name} corrections.csv`));
  $("corrections-save").onclick = () => save(told);
}

function save(told) {
  const rows = told.map((item) => `${cell(plain(item.name))},${cell(plain(item.truth))}`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`file,name\n${rows.join("\n")}\n`], { type: "text/csv" }));
  link.download = "corrections.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}
