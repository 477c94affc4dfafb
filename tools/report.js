// Click a heading: the table is sorted by that column, by size where cells are numbers; again: the other way round.
(function () {
  "use strict";
  const scale = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

  // The number that a cell starts with; null for a text or "-".
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

  function sortBy(table, column, heading) {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => {
      const text = row.cells[column].textContent.trim();
      return { row, text, number: heading.classList.contains("l") && !/^[0-9]/.test(text) ? null : numberOf(text) };
    });
    rows.sort((a, b) => compare(a, b, descending ? -1 : 1));
    for (const { row } of rows) {
      row.classList.remove("g");  // lines between groups mean nothing in another order
      body.append(row);
    }
  }

  for (const table of document.querySelectorAll("table"))
    Array.from(table.tHead.rows[0].cells).forEach((heading, column) =>
      heading.addEventListener("click", () => sortBy(table, column, heading)));
})();
