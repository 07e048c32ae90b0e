"use strict";
(() => {
  const form = document.getElementById("filter");
  const body = document.getElementById("rows");
  const count = document.getElementById("count");
  const none = document.getElementById("none");
  const compare = document.getElementById("compare");
  const field = name => form.elements[name];
  const NAMES = ["q", "kind", "protocol", "adversary", "verdict", "commit", "since", "until", "sort"];
  const EXACT = ["kind", "protocol", "adversary", "verdict", "commit"];
  const RANK = { error: 0, warning: 1, note: 2 };
  const rows = Array.from(body.rows, (row, place) => ({
    row, place, data: row.dataset,
    text: (row.textContent + " " + row.dataset.more + " " + row.dataset.adversary).toLowerCase(),
  }));
  const whole = form.dataset.whole === "yes";

  // Orders as in leakaudit/reporting/viewing/filters.py.
  const newest = (a, b) => (a.data.started < b.data.started ? 1 : a.data.started > b.data.started ? -1 : 0);
  const name = row => row.row.querySelector("th a").textContent;
  const plain = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const ORDER = {
    newest,
    oldest: (a, b) => newest(b, a),
    worst: (a, b) => RANK[a.data.level] - RANK[b.data.level] || newest(a, b),
    name: (a, b) => plain(name(a), name(b)),
    protocol: (a, b) => plain(a.data.protocol, b.data.protocol) || newest(a, b),
  };

  const matches = row => {
    for (const key of EXACT) {
      const wanted = field(key).value;
      if (wanted && !row.data[key].split("|").includes(wanted)) return false;
    }
    const day = row.data.started.slice(0, 10);
    if (field("since").value && day < field("since").value) return false;
    if (field("until").value && day > field("until").value) return false;
    return field("q").value.toLowerCase().split(/\s+/).every(word => row.text.includes(word));
  };

  const apply = () => {
    let shown = 0;
    for (const row of rows) {
      row.row.hidden = !matches(row);
      if (!row.row.hidden) shown += 1;
    }
    const total = rows.length.toLocaleString("en");
    const words = rows.length === 1 ? "run" : "runs";
    const text = shown === rows.length ? `All ${total} ${words}` : `${shown.toLocaleString("en")} of ${total} ${words}`;
    if (count.textContent !== text) count.textContent = text;
    none.hidden = shown > 0;
    const query = new URLSearchParams();
    for (const key of NAMES) {
      const value = field(key).value;
      if (value && !(key === "sort" && value === "newest")) query.set(key, value);
    }
    const address = location.pathname + (query.size ? `?${query}` : "");
    try { history.replaceState(null, "", address); } catch { /* a file, or too many changes */ }
  };

  const sort = () => {
    const order = ORDER[field("sort").value] || newest;
    body.append(...[...rows].sort((a, b) => order(a, b) || a.place - b.place).map(row => row.row));
  };

  form.hidden = false;
  // On a narrow screen, the runs come first.
  if (innerWidth < 640 && !location.search) document.getElementById("more").open = false;
  if (whole) {
    document.getElementById("apply").hidden = true;
    for (const [key, value] of new URLSearchParams(location.search)) {
      if (NAMES.includes(key)) field(key).value = value;
    }
    if (!field("sort").value) field("sort").value = "newest";
    form.addEventListener("submit", event => event.preventDefault());
    form.addEventListener("input", apply);
    field("sort").addEventListener("change", () => { sort(); apply(); });
    if (location.search) { sort(); apply(); }
  } else {
    form.addEventListener("change", () => form.requestSubmit());
  }

  if (compare) {
    const update = () => {
      const chosen = body.querySelectorAll("input:checked").length;
      compare.disabled = chosen < 2;
      compare.textContent = chosen < 2 ? "Select runs to compare" : `Compare ${chosen} runs`;
    };
    body.addEventListener("change", update);
    update();
  }
})();
