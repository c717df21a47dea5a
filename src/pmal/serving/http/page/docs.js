// openapi.json as a page; nothing is loaded from elsewhere.

import { element } from "./scale.js";

const titled = (title, ...nodes) => [element("h3", "", title), ...nodes];

function list(pairs) {
  const box = element("dl");
  for (const [name, text] of pairs) box.append(element("dt", "", name), element("dd", "", text));
  return box;
}

function example(responses) {
  const value = responses["200"]?.content?.["application/json"]?.example;
  return value ? titled("Example", element("pre", "", JSON.stringify(value, null, 2))) : [];
}

function describe(path, method, about) {
  const card = element("section", "card"), head = element("h2", "path");
  head.append(element("span", "method", method.toUpperCase()), path);
  card.append(head, element("p", "", about.description ?? about.summary));
  const parameters = about.parameters ?? [];
  if (parameters.length)
    card.append(...titled("Parameters", list(parameters.map((p) => [p.name, p.description ?? p.schema.type]))));
  if (about.requestBody) {
    const types = Object.keys(about.requestBody.content).join(", ");
    card.append(...titled("Body", element("p", "", about.requestBody.description), element("p", "fine", types)));
  }
  const answers = Object.entries(about.responses).filter(([status]) => status !== "422" || about.requestBody);
  card.append(...titled("Answers", list(answers.map(([status, found]) => [status, found.description]))));
  card.append(...example(about.responses));
  return card;
}

for (const id of ["base", "base-2"]) document.getElementById(id).textContent = new URL(".", location.href).href;
const { paths } = await (await fetch("openapi.json")).json();
for (const [path, methods] of Object.entries(paths))
  for (const [method, about] of Object.entries(methods))
    if (method !== "head") document.getElementById("docs").append(describe(path, method, about));
