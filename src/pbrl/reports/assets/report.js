"use strict";
(function () {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const config = { responsive: true, displaylogo: false };

  function colours() {
    const style = getComputedStyle(root);
    const pick = (name) => style.getPropertyValue(name).trim();
    return { text: pick("--text"), back: pick("--back"), line: pick("--line") };
  }

  function themed(layout) {
    const c = colours();
    const axis = { gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, automargin: true };
    return Object.assign({}, layout, {
      font: { color: c.text },
      paper_bgcolor: c.back,
      plot_bgcolor: c.back,
      hoverlabel: { bgcolor: c.back, font: { color: c.text } },
      xaxis: Object.assign({}, layout.xaxis, axis),
      yaxis: Object.assign({}, layout.yaxis, axis),
    });
  }

  function draw() {
    for (const chart of charts) {
      Plotly.react(chart.id, chart.traces, themed(chart.layout), config);
    }
  }

  function setTheme(name) {
    root.dataset.theme = name;
    draw();
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  });
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  // Paper is white: print in light colours whatever the screen shows.
  let before = "light";
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    setTheme("light");
  });
  window.addEventListener("afterprint", () => setTheme(before));

  function value(row, column) {
    const cell = row.cells[column];
    return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    // Cells without a number (a dash) come before numbers, texts by the reader's alphabet.
    if (typeof a === "number") return 1;
    if (typeof b === "number") return -1;
    return a.localeCompare(b, undefined, { numeric: true });
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = Array.from(body.rows);
        rows.sort((x, y) => (down ? -1 : 1) * compare(value(x, column), value(y, column)));
        body.append(...rows);
      });
    });
  }

  setTheme(dark.matches ? "dark" : "light");
})();
