"use strict";
// Tables: a click on a heading sorts, a word in the box filters.

function keyOf(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.value;
  return value === undefined || value === "" ? cell.textContent.trim().toLowerCase() : Number(value);
}

function compare(one, other) {
  const numbers = [typeof one === "number", typeof other === "number"];
  if (numbers[0] && numbers[1]) return one - other;
  if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1; // what has no figure goes to the end
  return one < other ? -1 : one > other ? 1 : 0;
}

function sortBy(heading) {
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const column = Number(heading.dataset.column);
  const upwards = heading.getAttribute("aria-sort") === "descending" || (!heading.hasAttribute("aria-sort") && !heading.classList.contains("num"));
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row, column) }));
  rows.sort((a, b) => {
    const blank = (each) => typeof each.key === "string" && (each.key === "" || each.key === "–");
    if (blank(a) !== blank(b)) return blank(a) ? 1 : -1;
    return upwards ? compare(a.key, b.key) : compare(b.key, a.key);
  });
  body.append(...rows.map((each) => each.row));
}

function filterBy(box) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = document.getElementById(box.dataset.table).tBodies[0].rows;
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  box.closest(".tools").querySelector("output").textContent = words.length ? `${shown} of ${rows.length}` : "";
}

for (const heading of document.querySelectorAll("th.sortable")) {
  heading.tabIndex = 0;
  heading.addEventListener("click", () => sortBy(heading));
  heading.addEventListener("keydown", (event) => {
    if (event.key === "Enter") sortBy(heading);
  });
}
for (const box of document.querySelectorAll("input[data-table]")) box.addEventListener("input", () => filterBy(box));

// A link to a run opens its section.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView();
  }
}
window.addEventListener("hashchange", openTarget);
openTarget();

// Light, dark, or as the system has it; remembered where the browser allows it.
const theme = document.getElementById("theme");
function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  theme.textContent = name || "auto";
}
let chosen = "";
try {
  chosen = localStorage.getItem("poise-theme") || "";
} catch {
  /* a page from the disk may have no storage */
}
setTheme(chosen);
theme.addEventListener("click", () => {
  chosen = { "": "light", light: "dark", dark: "" }[chosen];
  setTheme(chosen);
  try {
    localStorage.setItem("poise-theme", chosen);
  } catch {
    /* then it is forgotten */
  }
});
