// Draws charts into their places, for reports and for the pages of `tw serve`. A page sets for all of its charts:
// width (the one that marks a chart as filling its place), config (for Vega-Lite), and options (more for vega-embed).
const dark = window.matchMedia("(prefers-color-scheme: dark)");

// single charts take the available width; panels of a facet leave room for labels
function fitted(specification, width, page) {
  const own = structuredClone(specification);
  if (own.width === page.width) { own.width = width; own.autosize = { type: "fit-x", contains: "padding" }; }
  else if (own.spec && own.spec.width === page.width) own.spec.width = Math.max(200, width - 190);
  else if (own.vconcat) for (const part of own.vconcat) part.width = Math.max(200, width - 110);
  else if (own.spec && own.columns > 1) own.columns = Math.max(1, Math.floor(width / 330));
  return own;
}

async function embed(place, specification, page) {
  await window.vegaEmbed(place, specification, {
    renderer: "svg", config: page.config,
    actions: { export: true, source: false, compiled: false, editor: false }, ...page.options,
    tooltip: { theme: dark.matches ? "dark" : "light", ...page.options?.tooltip } });
  place.querySelector("summary")?.setAttribute("aria-label", "Save the chart as a picture");  // it shows only dots
}

async function drawChart(place, chart, page) {
  const width = place.clientWidth || page.width;
  const specification = fitted(chart, width, page);
  try {
    await embed(place, specification, page);
    const excess = place.querySelector("svg.marks").width.baseVal.value - width;
    const parts = specification.vconcat ?? (specification.spec && !(specification.columns > 1) ? [specification.spec] : []);
    if (parts.length && Math.abs(excess) > 8) {  // make room for the labels
      for (const part of parts) part.width = Math.max(200, part.width - excess);
      await embed(place, specification, page);
    }
    place.onwheel = place.onpointerup = () => setTimeout(() => hideCovered(place), 100);  // a chart that is moved or zoomed
    hideCovered(place);
  } catch (error) { place.textContent = "This chart cannot be drawn: " + error; console.error(error); }
}

// hides the labels of marks that would lie on another text, as on a narrow page
function hideCovered(place) {
  const texts = [...place.querySelectorAll("svg.marks text")];
  const labels = texts.filter((text) => text.closest(".mark-text.role-mark"));
  const kept = texts.filter((text) => !labels.includes(text)).map((text) => text.getBoundingClientRect());
  for (const label of labels) {
    const box = label.getBoundingClientRect();
    const isCovered = kept.some((other) => box.left < other.right && other.left < box.right
      && box.top + 2 < other.bottom && other.top + 2 < box.bottom);
    label.style.visibility = isCovered ? "hidden" : "";
    if (!isCovered) kept.push(box);
  }
}

// draws again when the width or the colour scheme changes; printing keeps the drawings: they scale
function followWindow(drawAll) {
  let width = window.innerWidth;
  let waiting;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width || window.matchMedia("print").matches) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 200);
  });
  dark.addEventListener("change", drawAll);
}
