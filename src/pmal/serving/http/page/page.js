// Ask the service about images and show its answers. The slider decides again from the score alone, here.

import { useCamera } from "./camera.js";
import { offerTruth, showCorrections } from "./corrections.js";
import { drawScale, element, figure, isKnown, number } from "./scale.js";
import { showTraffic, watchTraffic } from "./traffic.js";

const MOST_ITEMS = 30, MOST_CLASSES = 60, AT_ONCE = 4, PROTOTYPES = 5;
const $ = (id) => document.getElementById(id);

let model = null;
let items = [];    // newest first: {name, url, and answer or reason}
let shown = null;  // the item of the answer
let rate = null;   // position among the acceptance rates; null: the model's own threshold
let stored = null; // the score that decides if no other is chosen

// --- the model ---

async function fetchModel(score = "") {
  const response = await fetch(`v1/model${score && `?score=${encodeURIComponent(score)}`}`);
  if (!response.ok) throw new Error(`the service answered ${response.status}`);
  return response.json();
}

function useModel(found) {
  model = found;
  $("scale-title").textContent = `Score (${model.score}): left of the threshold is known`;
}

async function loadModel() {
  useModel(await fetchModel());
  stored = model.score;
  const classes = model.classes.length;
  $("model-line").textContent = `${model.name} · ${classes} known classes · ${model.encoder}, ${model.image_size} px`;
  $("legend").hidden = !model.known_scores;
  setUpScores();
  setUpRate();
  showClasses();
}

function setUpScores() {
  $("score-block").hidden = model.scores.length < 2;
  $("score").replaceChildren(...model.scores.map((name) => {
    const option = element("option", "", name === stored ? `${name} (stored)` : name);
    option.value = name;
    return option;
  }));
  $("score").value = stored;
}

/** All answers again: what is unknown by one score may be known by another. */
async function chooseScore(name) {
  try {
    const found = await fetchModel(name);
    if ($("score").value !== name) return;  // another was chosen meanwhile
    if (found.fingerprint !== model.fingerprint) return startAnew();
    const moved = rate === ownRate() ? null : rate;
    useModel(found);
    setUpRate(moved);
  } catch {
    $("score").value = model.score;
    return;
  }
  const again = items.filter((item) => item.answer);
  for (const item of again) { delete item.answer; item.again = true; }
  show();
  await answerAll(again);
}

function showClasses() {
  const chips = model.classes.slice(0, MOST_CLASSES).map((about) => {
    const chip = element(about.picture ? "button" : "div", about.picture ? "chip" : "chip plain");
    if (about.picture) {
      chip.type = "button";
      chip.append(picture(about.picture, ""));
      chip.title = "Ask about this prototype";
      chip.addEventListener("click", () => askAboutPicture(about));
    }
    chip.append(element("span", "", about.name));
    if (about.added) chip.append(element("small", "", "added"));
    const entry = element("li");
    entry.append(chip);
    return entry;
  });
  $("classes").replaceChildren(...chips);
  const more = model.classes.length - MOST_CLASSES;
  $("classes-more").hidden = more <= 0;
  $("classes-more").textContent = `and ${more} more`;
}

async function askAboutPicture(about) {
  const response = await fetch(about.picture);
  const name = `prototype of ${about.name}`;
  if (response.ok) ask([new File([await response.blob()], name, { type: "image/png" })]);
  scrollTo({ top: 0, behavior: "smooth" });
}

// --- asking ---

async function ask(files) {
  const fresh = files.map((file) => ({ name: file.name || "pasted image", url: URL.createObjectURL(file), file }));
  if (!fresh.length) return;
  items = [...fresh, ...items];
  for (const old of items.splice(MOST_ITEMS)) URL.revokeObjectURL(old.url);
  shown = fresh[0];
  show();
  await answerAll(fresh);
}

async function answerAll(asked) {
  const waiting = asked.slice();
  const worker = async () => {
    for (let item; (item = waiting.shift()); ) await answer(item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  await showTraffic();
}

async function answer(item) {
  try {
    if (item.file.size > model.limits.body_bytes)
      throw new Error(`larger than the limit of ${Math.floor(model.limits.body_bytes / 2 ** 20)} MiB`);
    const options = { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: item.file };
    const by = model.score === stored ? "" : `&score=${encodeURIComponent(model.score)}`;
    const response = await fetch(`v1/predict?top=${PROTOTYPES}${by}`, options);
    const found = await response.json().catch(() => ({ error: `the service answered ${response.status}` }));  // a proxy
    if (!response.ok) throw new Error(found.error);
    if (found.model.fingerprint !== model.fingerprint) await startAnew(item);
    if (found.model.score !== model.score) return answer(item);  // another was chosen meanwhile
    item.answer = found.answers[0];
  } catch (error) {
    item.reason = error instanceof TypeError ? "the service cannot be reached" : error.message;
  }
  delete item.again;
  show();
}

/** The service has another model now: what the old one said no longer counts. */
async function startAnew(item = null) {
  await loadModel();
  items = items.filter((other) => other === item || !(other.answer || other.reason));
  shown = item;
  if (!item) show();
}

// --- deciding ---

function limitOf({ answer }) {
  if (rate === null) return number(answer.threshold);
  const { thresholds, per_class } = model.acceptance;
  const row = per_class ? model.classes.findIndex((about) => about.name === answer.nearest) : 0;
  return number(thresholds[row][rate]);
}

/** Whether an image that is unknown is so because it is unlike every training image. */
function isFar({ answer }) {
  if (answer.typicality === null) return false;
  const limit = rate === null ? answer.typicality_threshold : model.acceptance.typicality_thresholds[rate];
  return !isKnown(number(answer.typicality), limit === null ? Infinity : number(limit));
}

function decide(item) {
  if (item.reason) return { kind: "bad", text: "no image" };
  if (!item.answer) return { kind: "waiting", text: "…" };
  const known = isKnown(number(item.answer.score), limitOf(item));
  return { kind: known ? "known" : "unknown", text: known ? item.answer.nearest : "unknown" };
}

const ownRate = () => (model.accept === null || !model.acceptance ? null : model.acceptance.rates.indexOf(model.accept));

/** At the rate that is given, else at the model's own. */
function setUpRate(kept = null) {
  const slider = $("rate"), acceptance = model.acceptance;
  $("rate-block").hidden = !acceptance;
  rate = null;
  if (!acceptance) return;
  slider.max = acceptance.rates.length - 1;
  rate = kept ?? ownRate();
  slider.value = rate ?? acceptance.rates.indexOf(0.95);
  showRate();
}

function showRate() {
  const share = rate === null ? null : model.acceptance.rates[rate];
  const text = share === null ? "own threshold" : `${Number((100 * share).toFixed(1))} %`;
  $("rate-value").textContent = text;
  $("rate").setAttribute("aria-valuetext", text);
  $("rate-reset").hidden = rate === ownRate();
  $("rate-note").textContent = rateNote(share);
}

function rateNote(share) {
  if (share === null) return model.note;
  const column = model.acceptance.thresholds.map((row) => number(row[rate]));
  if (column.every((limit) => limit === Infinity)) return "Too few held-out images for this rate: everything is accepted.";
  const note = model.acceptance.notes[rate];
  const about = "The share of known images to accept. A higher one rejects fewer of them, and lets more unknown ones pass.";
  return `${about} ${note[0].toUpperCase()}${note.slice(1)}.`;
}

// --- showing ---

function show() {
  showStrip();
  showCorrections(items, model.name);
  $("empty").hidden = Boolean(shown);
  $("problem").hidden = !shown?.reason;
  $("problem").textContent = shown?.reason ? `${shown.name}: ${shown.reason}` : "";
  $("result").hidden = !(shown?.answer || shown?.again);
  $("result").classList.toggle("waiting", Boolean(shown?.again));
  showPreview();
  if (shown?.answer) showAnswer();
  else $("spoken").textContent = "";
}

function showPreview() {
  const preview = $("preview");
  $("drop").classList.toggle("filled", Boolean(shown));
  $("drop-hint").hidden = Boolean(shown) && !shown.reason;
  preview.hidden = !shown || Boolean(shown.reason);
  $("image-name").hidden = !shown;
  $("image-name").textContent = shown?.name ?? "";
  if (!shown || preview.src === shown.url) return;
  preview.src = shown.url;
  preview.alt = `Your image ${shown.name}`;
}

function showAnswer() {
  const { answer } = shown, { kind, text } = decide(shown), known = kind === "known";
  const score = number(answer.score), limit = limitOf(shown);
  $("verdict").classList.toggle("known", known);
  $("verdict-kind").textContent = known ? "Known" : "Not a known class";
  $("verdict-class").textContent = text;
  $("verdict-why").textContent = why(answer, known);
  $("verdict-p").textContent = rarity(answer);
  $("spoken").textContent =
    `${known ? `Known: class ${answer.nearest}` : "Unknown"}. Score ${figure(score)}, threshold ${figure(limit)}.` +
    ` ${rarity(answer)}${!known && isFar(shown) ? " Unlike any training image." : ""}`;
  drawScale($("scale"), model, score, limit);
  showPrototypes(answer);
  offerTruth(model, shown, () => showCorrections(items, model.name));
}

function why(answer, known) {
  if (!known && isFar({ answer })) return "Unlike any training image, whatever class it is near to.";
  if (!known) return `Nearest is ${answer.nearest}, but not near enough.`;
  if (typeof answer.probability !== "number") return "By the nearest prototypes alone: this class was added later.";
  return `Probability among the known classes ${probability(answer.probability)}`;
}

/** How rare such an image is among known ones, by both scores. */
function rarity({ p_value: p }) {
  if (p === null) return "";
  return `p-value ${figure(p)}: at most ${Number((100 * p).toPrecision(2))} % of known images look at least as unknown.`;
}

const probability = (share) => (share > 0.9999 ? "> 99.99 %" : `${(100 * share).toFixed(share > 0.99 ? 2 : 1)} %`);

function showPrototypes({ prototypes, nearest }) {
  $("prototypes-title").textContent = `Nearest prototypes of ${nearest}, and their weights`;
  $("prototypes-title").hidden = !prototypes.length;
  $("no-prototypes").hidden = Boolean(prototypes.length);
  const most = Math.max(...prototypes.map((p) => number(p.weight)), 0);
  $("prototypes").replaceChildren(...prototypes.map((prototype) => prototypeCard(prototype, most, nearest)));
}

function prototypeCard({ file, weight, picture: path }, most, nearest) {
  const card = element("li"), bar = element("div", "bar"), filled = bar.appendChild(element("div"));
  card.append(path ? picture(path, `Prototype of ${nearest}: ${file}`) : element("div", "no-picture"));
  filled.style.width = `${most > 0 ? (100 * number(weight)) / most : 0}%`;
  const short = file.split("/").pop();
  const name = element("p", "fine", short.length > 20 ? `…${short.slice(-18)}` : short);  // the end tells them apart
  name.title = file;
  card.append(bar, element("p", "weight", `${(100 * number(weight)).toFixed(1)} %`), name);
  return card;
}

function showStrip() {
  $("recent").hidden = items.length < 2;
  const decided = items.map(decide);
  const count = (kind) => decided.filter((found) => found.kind === kind).length;
  $("tally").textContent = `· ${count("known")} known, ${count("unknown")} unknown`;
  $("strip").replaceChildren(...items.map((item, i) => stripEntry(item, decided[i])));
}

function stripEntry(item, { kind, text }) {
  const entry = element("li"), button = entry.appendChild(element("button", `is-${kind}`));
  button.type = "button";
  button.setAttribute("aria-pressed", item === shown);
  button.setAttribute("aria-label", `${item.name}: ${text}`);
  button.append(kind === "bad" ? element("img") : picture(item.url, ""));
  button.append(element("span", "", kind === "unknown" ? "?" : text));
  button.addEventListener("click", () => { shown = item; show(); });
  return entry;
}

function picture(path, alt) {
  const image = element("img");
  image.alt = alt;
  image.addEventListener("load", () => markTiny(image));
  image.src = path;
  return image;
}

/** Few pixels are shown as pixels, not as a blur. */
const markTiny = (image) => image.classList.toggle("tiny", image.naturalWidth < 128);

// --- what people do ---

function listen() {
  const take = (list) => ask([...list].filter((file) => file.size || file.type));
  $("file").addEventListener("change", () => { take($("file").files); $("file").value = ""; });
  $("preview").addEventListener("load", () => markTiny($("preview")));
  $("rate").addEventListener("input", () => { rate = Number($("rate").value); showRate(); show(); });
  $("rate-reset").addEventListener("click", () => { setUpRate(); show(); });
  $("score").addEventListener("change", () => chooseScore($("score").value));
  useCamera($("camera"), take);
  addEventListener("paste", (event) => take(event.clipboardData?.files ?? []));
  addEventListener("resize", () => shown?.answer && showAnswer());
  let inside = 0;  // enter and leave come for every element on the way
  const drag = (change) => { inside = Math.max(0, inside + change); document.body.classList.toggle("dragging", inside > 0); };
  addEventListener("dragenter", () => drag(1));
  addEventListener("dragleave", () => drag(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    drag(0);
    take(event.dataTransfer?.files ?? []);
  });
}

try {
  await loadModel();
  listen();
  watchTraffic();
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  $("model-line").textContent = "The service cannot be reached: reload the page in a moment.";
}
