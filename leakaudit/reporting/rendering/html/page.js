"use strict";
// What only helps: the page shows everything without it. Nothing is requested and nothing is stored.

// Sort a table by a column: numbers by value, everything else as text.
function sorted(table, column, down) {
  const body = table.tBodies[0];
  const value = (row) => row.cells[column].textContent.trim();
  const number = (text) => parseFloat(text.replace(/^[^\d+-]*/, ""));
  const compare = (a, b) => {
    const [x, y] = [number(value(a)), number(value(b))];
    if (Number.isNaN(x) || Number.isNaN(y)) return value(a).localeCompare(value(b));
    return x - y;
  };
  const rows = [...body.rows].sort(compare);
  body.append(...(down ? rows.reverse() : rows));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sorted(table, column, down);
    });
  });
}

// Show only the rows of a table that contain all words of a text.
for (const table of document.querySelectorAll("table.filtered")) {
  if (table.tBodies[0].rows.length < 5) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "filter rows";
  field.setAttribute("aria-label", "filter the rows of the table below");
  field.className = "filter";
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  (table.closest(".scroll") || table).before(field);
}

// Enlarge an image on a click, Enter or Space.
const dialog = document.createElement("dialog");
dialog.className = "zoom";
dialog.setAttribute("aria-label", "enlarged images");
dialog.addEventListener("click", () => dialog.close());
for (const figure of document.querySelectorAll("figure.pair, figure.evidence")) {
  const images = figure.querySelectorAll("img");
  if (!images.length) continue;
  if (!dialog.isConnected) document.body.append(dialog);
  const open = () => {
    const caption = document.createElement("p");
    caption.textContent = figure.querySelector("figcaption").innerText;
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "close";
    dialog.replaceChildren(...[...images].map((image) => image.cloneNode()), caption, close);
    dialog.showModal();
  };
  figure.classList.add("zoomable");
  images[0].tabIndex = 0;
  images[0].setAttribute("role", "button");
  for (const image of images) image.addEventListener("click", open);
  images[0].addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
}

// Replay the rounds: a node gets its shade in the round in which its leak is complete.
for (const figure of document.querySelectorAll("figure.network")) {
  const nodes = [...figure.querySelectorAll("[data-leaks]")].map((shape) => ({
    shape,
    label: figure.querySelector(`[data-label="${shape.dataset.node}"]`),
    leaks: shape.dataset.leaks.split(" ").map((leak) => leak.split(":").map(Number)),
  }));
  const ends = nodes.flatMap((node) => node.leaks.map(([last]) => last));
  const most = Math.max(...ends);
  if (!ends.length || most < 2) continue;
  const slider = document.createElement("input");
  slider.type = "range";
  slider.min = 0;
  slider.max = most;
  slider.value = most;
  const words = document.createElement("span");
  const label = document.createElement("label");
  label.className = "rounds";
  label.append(words, slider);
  const show = () => {
    const round = Number(slider.value);
    words.textContent = round ? `after round ${round}` : "before the first round";
    for (const { shape, label: number, leaks } of nodes) {
      const steps = leaks.filter(([last]) => last <= round).map(([, step]) => step);
      const step = Math.max(0, ...steps);
      shape.setAttribute("class", `node s${step}`);
      if (number) number.setAttribute("class", `number s${step}`);
    }
    for (const link of figure.querySelectorAll(".link.observed")) {
      const near = nodes.filter((node) => link.dataset.ends.split(" ").includes(node.shape.dataset.node));
      const steps = near.map((node) => Number(node.shape.getAttribute("class").slice(-1)));
      link.setAttribute("class", `link observed s${Math.max(0, ...steps)}`);
    }
  };
  slider.addEventListener("input", show);
  figure.querySelector("svg").after(label);
  show();
}
