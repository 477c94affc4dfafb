// A click on a heading sorts the rows by that column, within groups if the table has any. Numbers start with the highest,
// text with the first letter. A second click reverses the order, a third restores the original one.
(function () {
  "use strict";
  const scale = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

  // Returns the number that a cell starts with; null for text or "-".
  function numberOf(text) {
    const match = /^([+-]?[0-9][0-9,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*([KMGT]iB)?/i.exec(text);
    return match ? parseFloat(match[1].replace(/,/g, "")) * (scale[match[2]] || 1) : null;
  }

  // Rows without a number come last, whatever the direction.
  function compare(a, b, sign) {
    if (a.number !== null && b.number !== null) return sign * (a.number - b.number);
    if (a.number !== null || b.number !== null) return a.number !== null ? -1 : 1;
    return sign * a.text.localeCompare(b.text);
  }

  // Returns cells in the original order, which the stable sort keeps among equals.
  function cellsOf(body, column, isText) {
    const rows = Array.from(body.rows).sort((a, b) => a.dataset.place - b.dataset.place);
    return rows.map((row) => {
      const text = row.cells[column].textContent.trim();
      return { row, text, number: isText && !/^[0-9]/.test(text) ? null : numberOf(text) };
    });
  }

  function sortBy(table, bodies, column, heading) {
    const isText = heading.classList.contains("l");
    const all = bodies.map((body) => cellsOf(body, column, isText));
    const numbers = all.some((cells) => cells.some((cell) => cell.number !== null));
    const directions = numbers ? ["descending", "ascending"] : ["ascending", "descending"];
    const next = directions[directions.indexOf(heading.getAttribute("aria-sort")) + 1];
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    if (next) heading.setAttribute("aria-sort", next);
    bodies.forEach((body, i) => {
      if (next) all[i].sort((a, b) => compare(a, b, next === "descending" ? -1 : 1));
      for (const { row } of all[i]) body.append(row);
    });
  }

  for (const table of document.querySelectorAll("table")) {
    const bodies = Array.from(table.tBodies).filter((body) => !body.classList.contains("name"));
    for (const body of bodies) Array.from(body.rows).forEach((row, place) => { row.dataset.place = place; });
    Array.from(table.tHead.rows[0].cells).forEach((heading, column) =>
      heading.addEventListener("click", () => sortBy(table, bodies, column, heading)));
  }

  // Unfold everything for printing.
  window.addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
})();
