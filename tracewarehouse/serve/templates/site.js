// Draws the charts of a page, those of a run when they come into view, and keeps addresses short.
"use strict";

// the policy of these pages forbids eval and inline styles, so Vega interprets its expressions
const look = document.getElementById("look");
const shared = look && { ...JSON.parse(look.textContent),
  options: { ast: true, defaultStyle: false, forceActionsMenu: true, tooltip: { disableDefaultStyle: true } } };
const drawings = new Map();  // specifications by their places

async function put(place, specification) {
  drawings.set(place, specification);
  await drawChart(place, specification, shared);
  place.dataset.state = place.querySelector("svg.marks") ? "drawn" : "failed";
}

async function fetched(figure) {
  const place = figure.querySelector(".chart"), state = figure.querySelector(".state");
  state.textContent = "Reading ...";
  let found;
  try { found = await (await fetch(figure.dataset.address)).json(); }
  catch (error) { found = { error: `The server does not answer: ${error.message}` }; }
  if (found.absent) {  // one folded line says so, in place of an empty box
    const absent = document.getElementById("absent"), line = absent.querySelector("ul").appendChild(document.createElement("li"));
    line.textContent = `No chart ${figure.querySelector("h2, h3").textContent}: ${found.absent}`;
    const count = absent.querySelectorAll("li").length;
    absent.querySelector("summary").textContent = count === 1
      ? "1 chart needs something that is not there" : `${count} charts need something that is not there`;
    absent.hidden = false;
    figure.remove();
    return;
  }
  if (!found.specification) {
    state.textContent = found.error;
    place.dataset.state = "failed";
    return;
  }
  state.textContent = "";
  figure.querySelector("h2, h3").textContent = found.title;
  figure.querySelector("figcaption p").textContent = found.subtitle;
  const details = figure.querySelector("details");
  details.hidden = false;
  details.querySelector(".description").textContent = found.description;
  details.querySelector("pre").textContent = found.sql;
  details.querySelector(".files").replaceChildren(...found.links.flatMap(([label, address]) => {
    const link = document.createElement("a");
    link.href = address;
    link.textContent = label;
    return [link, " "];
  }));
  await put(place, found.specification);
}

if (shared) {
  for (const given of document.querySelectorAll(".specification")) {
    put(document.querySelector(`.chart[data-chart="${given.dataset.for}"]`), JSON.parse(given.textContent));
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); fetched(entry.target); }
  }, { rootMargin: "300px" });
  const waiting = document.querySelectorAll(".lazy");
  waiting.forEach((figure) => seen.observe(figure));
  document.getElementById("draw-all")?.addEventListener("click", (event) => {  // paper shows only charts that are drawn
    event.target.disabled = true;
    for (const figure of waiting) if (!figure.querySelector("[data-state]")) { seen.unobserve(figure); fetched(figure); }
  });
  followWindow(() => drawings.forEach((specification, place) => drawChart(place, specification, shared)));
}

// the steps of listed runs, each when it comes into view
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); stepOf(entry.target); }
}, { rootMargin: "200px" });
document.querySelectorAll(".step").forEach((place) => near.observe(place));

async function stepOf(place) {
  const answer = await fetch(place.dataset.address).catch(() => null);
  if (answer?.ok) place.innerHTML = await answer.text();  // escaped by the server
}

for (const form of document.forms) form.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
});

document.getElementById("sql")?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
});
