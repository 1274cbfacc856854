"use strict";
// Everything is readable without this: it adds sorting, filters, hints at what there is to the side, and the choice of light or dark.
(function () {
  var root = document.documentElement;

  function make(tag, properties, parent) {
    var made = Object.assign(document.createElement(tag), properties);
    if (parent) { parent.appendChild(made); }
    return made;
  }

  function remember(theme) {
    try { localStorage.setItem("harness-theme", theme); } catch (error) { /* A file may have no storage. */ }
  }

  function remembered() {
    try { return localStorage.getItem("harness-theme"); } catch (error) { return null; }
  }

  function setUpTheme() {
    var button = document.getElementById("theme");
    var dark = window.matchMedia("(prefers-color-scheme: dark)");
    function isDark() { return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches; }
    function show() { button.textContent = isDark() ? "Light" : "Dark"; }
    var kept = remembered();
    if (kept === "light" || kept === "dark") { root.dataset.theme = kept; }
    button.addEventListener("click", function () {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    });
    dark.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  // What a row is sorted by: numbers before words, what is missing last in either direction.
  function orderOf(row, place) {
    var cell = row.cells[place];
    var given = cell.dataset.order !== undefined ? cell.dataset.order : cell.textContent;
    var number = Number(given);
    return { missing: cell.textContent === "n/a", number: given.trim() !== "" && !isNaN(number) ? number : null, words: given };
  }

  function compare(left, right, sign) {
    if (left.missing !== right.missing) { return left.missing ? 1 : -1; }
    if (left.number !== null && right.number !== null) { return sign * (left.number - right.number); }
    return sign * left.words.localeCompare(right.words, "en", { numeric: true });
  }

  function setUpSorting(table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, place) {
      var title = head.textContent.trim();
      head.textContent = "";
      make("button", { type: "button", textContent: title, title: "Sort by " + title }, head);
      head.firstChild.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        var rows = Array.from(table.tBodies[0].rows).map(function (row) { return { row: row, by: orderOf(row, place) }; });
        rows.sort(function (a, b) { return compare(a.by, b.by, down ? -1 : 1); });
        rows.forEach(function (entry) { table.tBodies[0].appendChild(entry.row); });
      });
    });
  }

  function setUpFilters(table) {
    var rows = Array.from(table.tBodies[0].rows);
    if (rows.length < 6) { return; }
    var tools = make("div", { className: "tools" });
    var label = make("label", { textContent: "Find " }, tools);
    var find = make("input", { type: "search", placeholder: "any words" }, label);
    var chosen = [];
    Array.from(table.tHead.rows[0].cells).forEach(function (head, place) {
      if (head.classList.contains("choice")) { addChoice(rows, head.textContent, place, tools, chosen); }
    });
    var count = make("output", { className: "note" }, tools);
    function apply() {
      var words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !(words.every(function (word) { return text.indexOf(word) >= 0; }) &&
          chosen.every(function (one) { return !one.box.value || row.cells[one.place].textContent === one.box.value; }));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = shown + " of " + rows.length + " rows";
    }
    tools.addEventListener("input", apply);
    apply();
    table.parentNode.parentNode.insertBefore(tools, table.parentNode);
  }

  function addChoice(rows, title, place, tools, chosen) {
    var values = Array.from(new Set(rows.map(function (row) { return row.cells[place].textContent; }))).sort();
    if (values.length < 2 || values.length > 40) { return; }
    var label = make("label", { textContent: title + " " }, tools);
    var box = make("select", {}, label);
    make("option", { value: "", textContent: "all" }, box);
    values.forEach(function (value) { make("option", { value: value, textContent: value.slice(0, 60) }, box); });
    chosen.push({ place: place, box: box });
  }

  function openForPrint() {
    document.querySelectorAll("details:not([open])").forEach(function (entry) {
      entry.open = true;
      window.addEventListener("afterprint", function () { entry.open = false; }, { once: true });
    });
  }

  function hintAtMore(part) {
    function look() { part.classList.toggle("more", part.scrollLeft + part.clientWidth < part.scrollWidth - 4); }
    part.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(part);
  }

  setUpTheme();
  document.querySelectorAll("table.data").forEach(function (table) {
    setUpFilters(table);
    setUpSorting(table);
  });
  document.querySelectorAll(".scroll").forEach(hintAtMore);
  window.addEventListener("beforeprint", openForPrint);
  root.dataset.ready = "yes";
}());
