"use strict";
(async () => {
  // What the file holds in compressed form, as text.
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const short = (x, digits = 4) => (Number.isFinite(x) ? String(Number(x.toPrecision(digits))) : "none");
  const percent = (x) => `${(100 * x).toFixed(100 * x >= 9.95 || x === 0 ? 0 : 100 * x >= 0.995 ? 1 : 2)} %`;
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

  // Tables: a click on a heading sorts, words filter.
  const key = (cell) => (cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value));
  const compare = (a, b) => {
    const [x, y] = [typeof a === "number", typeof b === "number"];
    if (x && y) return a - b;
    if (x !== y) return x ? -1 : 1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  const sortBy = (table, index) => {
    const headings = [...table.tHead.rows[0].cells];
    const down = headings[index].getAttribute("aria-sort") === "ascending";
    headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    headings[index].setAttribute("aria-sort", down ? "descending" : "ascending");
    const empty = (row) => row.cells[index].textContent.trim() === "";
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b)); // what is not there stays at the end
      return (down ? -1 : 1) * compare(key(a.cells[index]), key(b.cells[index]));
    });
    table.tBodies[0].append(...rows);
  };
  const filter = (table, text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    rows.forEach((row) => {
      const content = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
    });
    return `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, index) => {
      heading.querySelector("button").addEventListener("click", () => sortBy(table, index));
    });
  }
  for (const input of document.querySelectorAll("input.filter")) {
    input.addEventListener("input", () => {
      const name = input.dataset.table;
      document.querySelector(`output[data-table="${name}"]`).textContent = filter(document.getElementById(name), input.value);
    });
  }

  // On paper nothing can be unfolded.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((details) => { details.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));

  // Figures.
  const models = (name) => Bokeh.documents.flatMap((doc) => [...doc._all_models.values()].filter((m) => m.name === name));
  const paint = (dark) => {
    const [text, line] = dark ? ["#c9d1dc", "#465062"] : ["#333c4a", "#c9cfd8"];
    const ink = dark ? "#f2f4f8" : "#10151d";
    for (const doc of Bokeh.documents) {
      for (const model of doc._all_models.values()) {
        const given = model.attributes;
        if ("major_label_text_color" in given) {
          model.setv({ major_label_text_color: text, axis_label_text_color: text, axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null });
        } else if ("grid_line_color" in given) {
          model.setv({ grid_line_color: line, grid_line_alpha: 0.5 });
        } else if (given.tags && given.tags.includes("ink")) {
          model.setv("line_color" in given ? { line_color: ink } : { text_color: ink });
        }
      }
    }
  };
  const watchColours = () => {
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    paint(dark.matches);
    dark.addEventListener("change", () => paint(dark.matches));
    window.addEventListener("beforeprint", () => paint(false));
    window.addEventListener("afterprint", () => paint(dark.matches));
  };

  // The limit: one number in the figure, the slider and the field.
  const limitTool = (least, greatest, describe) => {
    const [slider, field, words] = ["slider", "number", "words"].map((part) => document.getElementById(`limit-${part}`));
    const spans = models("limit");
    let current = null;
    const set = (given) => {
      const limit = Math.min(Math.max(least, given), greatest);
      if (!Number.isFinite(limit) || limit === current) return;
      current = limit;
      spans.forEach((span) => { if (span.location !== limit) span.location = limit; });
      slider.value = limit;
      if (document.activeElement !== field) field.value = Number(limit.toPrecision(6));
      words.textContent = describe(limit);
    };
    slider.addEventListener("input", () => set(Number(slider.value)));
    field.addEventListener("input", () => { if (field.value !== "") set(Number(field.value)); });
    spans.forEach((span) => span.properties.location.change.connect(() => set(span.location)));
  };
  const describeEpisodes = (episodes) => (limit) => {
    const inside = episodes.returns.filter((_, i) => episodes.costs[i] <= limit);
    const outside = episodes.returns.filter((_, i) => episodes.costs[i] > limit);
    const earn = [];
    if (inside.length) earn.push(`they earn ${short(mean(inside))} on average`);
    if (outside.length) earn.push(`the others ${short(mean(outside))}`);
    const whole = `${inside.length} of ${episodes.returns.length} episodes (${percent(inside.length / episodes.returns.length)})`;
    const step = limit / episodes.discounted_steps;
    return `${whole} are inside a limit of ${short(limit)}: ${earn.join(", ")}. At a steady pace that is ${short(step)} per step, ${short(step * episodes.horizon)} per episode of ${episodes.horizon} steps.`;
  };

  // A policy for a range of limits: what its critics expect, on the line between the two nearest limits of the curve.
  const describeCurve = (curve) => (limit) => {
    const next = Math.max(1, curve.limits.findIndex((x) => x >= limit));
    const [low, high] = [curve.limits[next - 1], curve.limits[next]];
    const at = (values) => values[next - 1] + ((values[next] - values[next - 1]) * (limit - low)) / (high - low);
    const cost = at(curve.costs);
    return `Given a limit of ${short(limit)}, the policy is expected to cost ${short(cost)} (${cost <= limit ? "inside" : "OUTSIDE"}) and to earn ${short(at(curve.returns))}, discounted over an infinite horizon.`;
  };

  // A choice: the figures' sources get the data of another variant.
  const choiceTool = (variants) => {
    const select = document.getElementById("choice");
    select.addEventListener("change", () => {
      for (const [name, data] of Object.entries(variants[Number(select.value)].sources)) {
        models(name).forEach((source) => { source.data = data; });
      }
      for (const [name, label] of Object.entries(variants[Number(select.value)].labels)) {
        models(name).forEach((axis) => { axis.axis_label.text = label; axis.change.emit(); });
      }
    });
  };

  try {
    if (document.querySelector(".plot") === null) { document.body.dataset.ready = "yes"; return; }
    const library = document.createElement("script");
    library.textContent = await unpack("library");
    document.head.append(library);
    const content = JSON.parse(await unpack("content"));
    Bokeh.set_log_level("warn");
    for (const item of content.figures) await Bokeh.embed.embed_item(item);
    watchColours();
    if (content.episodes) limitTool(0, Infinity, describeEpisodes(content.episodes));
    if (content.curve) limitTool(content.curve.limits[0], content.curve.limits.at(-1), describeCurve(content.curve));
    if (content.variants) choiceTool(content.variants);
    document.body.dataset.ready = "yes";
  } catch (error) {
    const trouble = document.getElementById("trouble");
    trouble.textContent = `The figures cannot be shown in this browser (${error}). The text and the tables are complete.`;
    trouble.hidden = false;
    document.body.dataset.ready = "no";
  }
})();
