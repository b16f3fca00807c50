"use strict";

// What was found. An item is the number of an image, or beyond `images` of a file that cannot be read.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const unpack = ({ type, text }) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new { f4: Float32Array, f8: Float64Array, i4: Int32Array }[type](bytes.buffer);
};
const { names, images, classes } = data;
const [labels, points, neighbours, distances, starts] = ["labels", "points", "neighbours", "distances", "starts"].map((name) => unpack(data[name]));
const near = images ? neighbours.length / images : 0; // neighbours of each image
const columns = data.columns.map((column) => ({ ...column, values: unpack(column.values) }));
const kinds = new Map(data.kinds.map((kind) => [kind.id, { ...kind, issues: [] }]));
const issuesOf = names.map(() => []);
for (const issue of data.issues) {
  kinds.get(issue.kind).issues.push(issue);
  issuesOf[issue.item].push(issue);
}
for (const kind of kinds.values()) kind.issues.sort((a, b) => b.score - a.score);

// Words. Names are hostile: they become text, never markup, and what cannot be seen is written out.
const shownName = (name) => name
  .replace(/[\n\r\t]/g, (letter) => ({ "\n": "\\n", "\r": "\\r", "\t": "\\t" })[letter])
  .replace(/[\udc80-\udcff]/gu, (letter) => `\\x${(letter.charCodeAt(0) & 0xff).toString(16)}`)
  .replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
const label = (item) => (item < images && labels[item] >= 0 ? shownName(classes[labels[item]]) : "");
const extraLabel = (item) => (names[item].split("/").at(-2) === classes[labels[item]] ? "" : label(item)); // unless the folder tells it
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
const figure = (value) => {
  if (!Number.isFinite(value)) return "–";
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(3)));
};
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
};
const button = (text, click, attributes = {}) => element("button", { type: "button", click, ...attributes }, text);

// Thumbnails: any piece of the text is base64 by itself, so nothing is decoded before it is shown.
const thumbnails = byId("thumbnails").textContent;
const thumbnail = (item) => `data:image/jpeg;base64,${thumbnails.slice(starts[item], starts[item + 1])}`;

// Selection
const selected = new Set();
const mark = (part) => {
  const chosen = selected.has(Number(part.dataset.item));
  part.classList.toggle("selected", chosen);
  part.querySelector("input").checked = chosen;
};
const selectionChanged = () => {
  for (const part of document.querySelectorAll("[data-item]")) mark(part);
  byId("selection").hidden = !selected.size;
  byId("count").textContent = `${selected.size.toLocaleString("en")} selected`;
  const broken = [...selected].some((item) => /[\n\r]/.test(names[item]));
  const list = document.querySelector("[data-format=txt]");
  list.disabled = broken;
  list.title = broken ? "A name has a line break: take JSON" : "One name per line";
  map?.draw();
};
const select = (items, on = true) => {
  for (const item of items) if (on) selected.add(item); else selected.delete(item);
  selectionChanged();
};
const toggle = (item) => select([item], !selected.has(item));

// An image is a removal that we suggest if its group has one to keep, and if it is kept for no other group.
const suggested = (() => {
  const key = (issue) => `${issue.kind} ${issue.group}`;
  const kept = data.issues.filter((issue) => issue.group !== null && issue.action === "keep");
  const groups = new Set(kept.map(key));
  const keep = new Set(kept.map((issue) => issue.item));
  return new Set(data.issues.filter((issue) => groups.has(key(issue)) && !keep.has(issue.item) && issue.action.startsWith("remove")).map((issue) => issue.item));
})();

// Downloads. A name that is not UTF-8 has its bytes as the surrogates DC80 to DCFF, as in Python; files get the bytes.
const bytes = (text) => text.split(/([\udc80-\udcff])/u).map((piece, i) => (i % 2 ? Uint8Array.of(piece.charCodeAt(0) & 0xff) : new TextEncoder().encode(piece)));
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const moveScript = (chosen) => `#!/bin/sh
# Moves images out of their folder into another one beside it, subfolders included. Deletes and overwrites nothing.
# Usage: sh move-images.sh [FOLDER [TO]]
set -u
if [ "$#" -gt 0 ]; then from=$1; else from=${quoted(data.folder)}; fi
from=\${from%/}
if [ "$#" -gt 1 ]; then to=$2; else to=$from-moved; fi
moved=0
left=0
move() {
  target=$to/$1
  if [ -e "$target" ] || [ -L "$target" ]; then
    printf 'not moved, as there is one already: %s\\n' "$(printf '%s' "$target" | tr -d '\\001-\\037\\177')" >&2
    left=$((left + 1))
  elif mkdir -p -- "\${target%/*}" && mv -n -- "$from/$1" "$target"; then
    moved=$((moved + 1))
  else
    left=$((left + 1))
  fi
}
${chosen.map((item) => `move ${quoted(names[item])}`).join("\n")}
printf '%d moved, %d not moved\\n' "$moved" "$left"
[ "$left" -eq 0 ]
`;
const csvCell = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const csvName = (name) => (/^[=+\-@\t\r\n]/.test(name) ? `./${name}` : name); // a spreadsheet would take it for a formula
const csvRow = (item) => [
  csvName(names[item]),
  item < images && labels[item] >= 0 ? classes[labels[item]] : "",
  issuesOf[item].map((issue) => issue.kind).join(" "),
  ...columns.map(({ values }) => (item < images && !Number.isNaN(values[item]) ? String(values instanceof Float32Array ? Number(values[item].toPrecision(7)) : values[item]) : "")),
];
const FORMATS = {
  txt: { file: "images.txt", write: (chosen) => chosen.map((item) => `${names[item]}\n`).join("") },
  json: { file: "images.json", write: (chosen) => `${JSON.stringify(chosen.map((item) => names[item]), null, 1)}\n` },
  csv: {
    file: "images.csv",
    write: (chosen) => [["name", "class", "issues", ...columns.map((column) => column.id)], ...chosen.map(csvRow)].map((row) => `${row.map(csvCell).join(",")}\r\n`).join(""),
  },
  sh: { file: "move-images.sh", write: moveScript },
};
for (const part of document.querySelectorAll("[data-format]")) {
  const { file, write } = FORMATS[part.dataset.format];
  if (part.dataset.format === "sh" && data.folder === null) part.hidden = true; // its images are no files
  part.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob(bytes(write([...selected].sort((a, b) => a - b)))));
    element("a", { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
}

// The address of an image's file, if the page was opened from a disk and the images are files.
const fileAddress = (item) => {
  if (location.protocol !== "file:" || data.folder === null || item >= images) return null;
  const safe = (byte) => (/[\w./-]/.test(String.fromCharCode(byte)) && byte < 128 ? String.fromCharCode(byte) : `%${byte.toString(16).padStart(2, "0")}`);
  return `file://${bytes(`${data.folder}/${names[item]}`).map((piece) => Array.from(piece, safe).join("")).join("")}`;
};

// One image of a list: a button that opens it, a box that selects it, its name and a few words.
const nameParts = (item) => {
  const name = names[item];
  const cut = name.lastIndexOf("/") + 1;
  const parts = [element("span", { class: "name", title: shownName(name) }, element("bdi", {}, shownName(name.slice(cut))))];
  if (cut) parts.push(element("span", { class: "folder", title: shownName(name) }, element("bdi", {}, shownName(name.slice(0, cut)))));
  return parts;
};
const picture = (item) => (item < images ? element("img", { src: thumbnail(item), alt: "", decoding: "async" }) : element("span", { class: "blank" }, "cannot be read"));
const tile = (item, words = [], badge = null) => {
  const made = element("li", { class: "tile", "data-item": item },
    element("button", { type: "button", class: "open", tabindex: -1, "aria-label": [shownName(names[item]), label(item), badge, ...words].filter(Boolean).join(", ") }, picture(item)),
    element("label", { class: "pick" }, element("input", { type: "checkbox", tabindex: -1, "aria-label": `Select ${shownName(names[item])}` })),
    badge === null ? null : element("span", { class: `badge ${badge}`, "aria-hidden": "true" }, badge),
    ...nameParts(item),
    ...words.filter(Boolean).map((text) => element("span", { class: "value" }, text)));
  mark(made);
  return made;
};

// A long list is made in pieces, each when the end of the one before comes near.
const CHUNK = 96;
const filled = (list, entries, make) => {
  let done = 0;
  const end = element("div", { class: "end" });
  const more = () => {
    list.append(...entries.slice(done, done + CHUNK).map(make));
    if (!done) list.querySelector(".open")?.setAttribute("tabindex", 0);
    done += CHUNK;
    observer.unobserve(end);
    if (done < entries.length) observer.observe(end); // reports again if the end is still near
    else end.remove();
  };
  const observer = new IntersectionObserver((seen) => { if (seen.some((entry) => entry.isIntersecting)) more(); }, { rootMargin: "1200px" });
  more();
  return [list, end];
};
const tiles = (items, make, attributes = {}) => filled(element("ul", { class: "tiles", ...attributes }), items, make);

// Keys and clicks of all lists
const openButtons = (list) => [...list.querySelectorAll(".open")];
const go = (from, to) => {
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
};
const beneath = (buttons, from, way) => { // the nearest button in the next row
  const box = from.getBoundingClientRect();
  const after = buttons.map((other) => ({ other, place: other.getBoundingClientRect() })).filter(({ place }) => way * (place.top - box.top) > box.height / 2);
  const distance = ({ place }) => 4 * Math.abs(place.top - box.top) + Math.abs(place.left - box.left);
  return after.length ? after.reduce((a, b) => (distance(b) < distance(a) ? b : a)).other : null;
};
const listKeys = (event) => {
  const from = event.target.closest(".open");
  if (!from) return;
  if (event.key === " ") {
    event.preventDefault();
    toggle(Number(from.closest("[data-item]").dataset.item));
    return;
  }
  const buttons = openButtons(from.closest(".list"));
  const at = buttons.indexOf(from);
  const to = {
    ArrowRight: () => buttons[at + 1], ArrowLeft: () => buttons[at - 1], Home: () => buttons[0], End: () => buttons.at(-1),
    ArrowDown: () => beneath(buttons, from, 1), ArrowUp: () => beneath(buttons, from, -1),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  event.stopPropagation();
  if (to()) go(from, to());
};
document.addEventListener("keydown", listKeys);
document.addEventListener("keyup", (event) => { if (event.key === " " && event.target.closest?.(".open")) event.preventDefault(); });
document.addEventListener("click", (event) => {
  const part = event.target.closest?.("[data-item]");
  if (!part) return;
  const item = Number(part.dataset.item);
  if (event.target.closest(".open")) viewer.open(item, Boolean(part.closest("dialog")));
  else if (event.target.matches("input")) select([item], event.target.checked);
});

// The views: each makes its part of the page when its tab is chosen. `order` is the images of the view.
let order = [];
const panel = byId("panel");
const heading = (title, text, ...tools) => element("div", { class: "heading" },
  element("div", {}, element("h2", {}, title), element("p", { class: "soft" }, text)),
  element("div", { class: "tools" }, ...tools));
const selectAll = (items) => button(`Select all ${items.length.toLocaleString("en")}`, () => select(items));
const selectSuggested = (items) => {
  const removals = items.filter((item) => suggested.has(item));
  return removals.length ? button("Select suggested removals", () => select(removals)) : null;
};
const cutNote = (kind) => (kind.issues.length < kind.total ? ` This page shows ${kind.issues.length.toLocaleString("en")} of ${kind.total.toLocaleString("en")}.` : "");
const inWords = (kind) => `${kind.meaning}${kind.id === "ood" && data.threshold !== null ? ` Flagged above a score of ${figure(data.threshold)}.` : ""} Worst first.`;

const groupsOf = (kind) => {
  const groups = new Map();
  for (const issue of kind.issues) groups.set(issue.group, [...(groups.get(issue.group) ?? []), issue]);
  for (const group of groups.values()) group.sort((a, b) => (b.action === "keep") - (a.action === "keep"));
  return [...groups.values()];
};
const groupCard = (group) => element("li", { class: "group" }, element("ul", { class: "tiles", "aria-label": `Group of ${group.length}` },
  ...group.map((issue) => tile(issue.item, [shownName(issue.note)], issue.action === "keep" ? "keep" : suggested.has(issue.item) ? "remove" : null))));
const issueView = (kind) => () => {
  const items = [...new Set(kind.issues.map((issue) => issue.item))];
  if (kind.issues.some((issue) => issue.group !== null)) {
    const groups = groupsOf(kind);
    order = groups.flat().map((issue) => issue.item);
    return [heading(kind.title, `${kind.meaning} ${count(groups.length, "group")}${groups.some(([first]) => first.action === "keep") ? "; the image to keep is the first" : ""}.${cutNote(kind)}`, selectSuggested(items), selectAll(items)),
      ...filled(element("ul", { class: "groups list" }), groups, groupCard)];
  }
  order = items;
  const words = new Map(kind.issues.map((issue) => [issue.item, issue]));
  if (kind.id === "unreadable") {
    const row = (item) => {
      const made = element("tr", { "data-item": item }, element("td", {}, element("input", { type: "checkbox", "aria-label": `Select ${shownName(names[item])}` })),
        element("th", { scope: "row" }, element("bdi", {}, shownName(names[item]))), element("td", {}, shownName(words.get(item).note)));
      mark(made);
      return made;
    };
    const body = element("tbody", {});
    const [, end] = filled(body, items, row);
    return [heading(kind.title, kind.meaning + cutNote(kind), selectAll(items)), element("table", { class: "files" }, body), end];
  }
  return [heading(kind.title, inWords(kind) + cutNote(kind), selectAll(items)),
    ...tiles(items, (item) => tile(item, [`score ${figure(words.get(item).score)}`, shownName(words.get(item).note)]), { class: "tiles list" })];
};

const state = { text: "", label: "", sort: "", down: true, only: false };
const allView = () => {
  const list = element("div", {});
  const number = element("p", { class: "soft", "aria-live": "polite" });
  const show = () => {
    const text = state.text.toLowerCase();
    const column = columns.find(({ id }) => id === state.sort);
    order = Array.from({ length: state.only ? names.length : images }, (_, i) => i).filter((item) =>
      names[item].toLowerCase().includes(text) && (state.label === "" || labels[item] === Number(state.label)) && (!state.only || selected.has(item)));
    const way = state.down ? -1 : 1;
    if (column) { // images without a number come last either way
      const missing = (item) => !Number.isFinite(column.values[item]);
      order.sort((a, b) => missing(a) - missing(b) || way * (column.values[a] - column.values[b]) || a - b);
    }
    direction.hidden = !column;
    all.textContent = `Select all ${order.length.toLocaleString("en")}`;
    number.textContent = order.length === images ? count(images, "image") : `${order.length.toLocaleString("en")} of ${count(images, "image")}`;
    list.replaceChildren(...(order.length ? tiles(order, (item) => tile(item, [column ? `${column.title} ${figure(column.values[item])}` : extraLabel(item)]), { class: "tiles list" }) : [element("p", { class: "empty" }, "No image fits.")]));
  };
  const set = (name, read = (target) => target.value) => ({ target }) => { state[name] = read(target); show(); };
  const option = (value, text, chosen) => element("option", { value, selected: String(value) === String(chosen) }, text);
  const direction = button("", () => { state.down = !state.down; turn(); show(); }, { class: "direction" });
  const turn = () => {
    direction.textContent = state.down ? "↓" : "↑";
    direction.setAttribute("aria-label", state.down ? "Largest first" : "Smallest first");
    direction.title = direction.getAttribute("aria-label");
  };
  turn();
  const all = button("", () => select(order));
  const search = element("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", value: state.text, input: set("text") });
  const classChoice = element("select", { "aria-label": "Class", change: set("label") }, option("", "All classes", state.label), ...classes.map((name, i) => option(i, shownName(name), state.label)));
  const sortChoice = element("select", { "aria-label": "Sort by", change: set("sort") }, option("", "Order of the folder", state.sort), ...columns.map(({ id, title }) => option(id, title, state.sort)));
  const only = element("label", { class: "check" }, element("input", { type: "checkbox", id: "only", checked: state.only, change: set("only", (target) => target.checked) }), "Selected only");
  show();
  return [element("div", { class: "heading" }, element("div", {}, element("h2", {}, "All images"), number),
    element("div", { class: "tools" }, search, classes.length ? classChoice : null, sortChoice, direction, only, all)), list];
};

const labelView = () => {
  order = data.representative;
  const place = new Map(order.map((item, i) => [item, i + 1]));
  return [heading("Label first", "Few images that stand for all: typical of the folder and unlike each other. The most useful first.", selectAll(order)),
    ...tiles(order, (item) => tile(item, [`${place.get(item)}. ${label(item)}`]), { class: "tiles list" })];
};

// The map
let map = null;
const CATEGORIES = 10; // colours that can be told apart
const colourOf = (() => { // canvases do not know the variables of the style
  const probe = document.body.appendChild(element("span", { hidden: true }));
  return (colour) => {
    probe.style.color = colour;
    return getComputedStyle(probe).color;
  };
})();
const byGroup = (of, titles) => { // the most frequent have a colour, the others are grey
  const counts = new Map();
  for (let i = 0; i < images; i++) if (of(i) !== null) counts.set(of(i), (counts.get(of(i)) ?? 0) + 1);
  const ranked = [...counts].sort((a, b) => b[1] - a[1]);
  const colours = new Map(ranked.slice(0, CATEGORIES).map(([group], i) => [group, `var(--c${i})`]));
  const legend = [...colours].map(([group, colour]) => [colour, `${titles(group)} ${counts.get(group).toLocaleString("en")}`]);
  const rest = images - ranked.slice(0, CATEGORIES).reduce((sum, [, number]) => sum + number, 0);
  if (rest) legend.push(["var(--quiet)", `${counts.size > CATEGORIES ? "others" : "none"} ${rest.toLocaleString("en")}`]);
  return { legend, colour: (i) => colours.get(of(i)) ?? "var(--quiet)", front: (i) => colours.has(of(i)) };
};
const SHADES = 8;
const byColumn = ({ values }) => {
  const sorted = values.filter((value) => !Number.isNaN(value)).sort();
  const [low, high] = [0.02, 0.98].map((share) => sorted[Math.round(share * (sorted.length - 1))]); // single extremes do not set the scale
  const shades = Array.from({ length: SHADES }, (_, i) => `color-mix(in oklab, var(--s1) ${Math.round((100 * i) / (SHADES - 1))}%, var(--track))`);
  const shade = (i) => Math.max(0, Math.min(SHADES - 1, Math.floor((SHADES * (values[i] - low)) / (high - low || 1))));
  return { shades, ends: [figure(low), figure(high)], colour: (i) => (Number.isNaN(values[i]) ? "var(--rule)" : shades[shade(i)]), front: (i) => shade(i) > SHADES / 2 };
};
const colourings = () => [
  ...(data.issues.length ? [{ title: "Issue", make: () => byGroup((i) => issuesOf[i][0]?.kind ?? null, (id) => kinds.get(id).title) }] : []),
  ...(classes.length ? [{ title: "Class", make: () => byGroup((i) => (labels[i] < 0 ? null : labels[i]), (i) => shownName(classes[i])) }] : []),
  ...columns.map((column) => ({ title: column.title, make: () => byColumn(column) })),
];

const mapView = () => {
  order = Array.from({ length: images }, (_, i) => i);
  const canvas = element("canvas", { tabindex: 0, role: "application", "aria-label": "Map of the images: arrow keys move from image to image, Enter opens one, Space selects it" });
  const [tip, legend, frame] = [element("div", { class: "tip", hidden: true }), element("div", { class: "legend" }), element("div", { class: "frame", hidden: true })];
  const spoken = element("p", { class: "spoken", "aria-live": "polite" });
  const ways = colourings();
  let [colouring, here, places, press, opening] = [ways[0]?.make(), null, [], null, null];
  const MARGIN = 18;
  const spread = (axis) => {
    const values = order.map((i) => points[2 * i + axis]).filter(Number.isFinite);
    const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    return (i) => (high > low ? (points[2 * i + axis] - low) / (high - low) : 0.5);
  };
  const [across, down] = [spread(0), spread(1)];
  const draw = () => {
    const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    places = order.map((i) => [MARGIN + across(i) * (width - 2 * MARGIN), MARGIN + (1 - down(i)) * (height - 2 * MARGIN)]);
    const resolved = new Map();
    const ink = (colour) => { if (!resolved.has(colour)) resolved.set(colour, colourOf(colour)); return resolved.get(colour); };
    const radius = images > 1500 ? 3 : images > 300 ? 4 : 5.5;
    const dot = (i) => { pen.beginPath(); pen.arc(...places[i], radius, 0, 2 * Math.PI); };
    pen.globalAlpha = 0.85;
    for (const front of [false, true]) {
      for (const i of order) {
        if (colouring && colouring.front(i) !== front) continue;
        if (!colouring && front) continue;
        pen.fillStyle = ink(colouring ? colouring.colour(i) : "var(--s0)");
        dot(i);
        pen.fill();
      }
    }
    pen.globalAlpha = 1;
    pen.lineWidth = 2;
    pen.strokeStyle = ink("var(--ink)");
    for (const i of order) if (selected.has(i) || i === here) { dot(i); pen.stroke(); }
  };
  const nearest = (x, y, fits = () => true) => {
    let [best, least] = [null, Infinity];
    for (const i of order) {
      const [right, below] = [places[i][0] - x, places[i][1] - y];
      const distance = right ** 2 + below ** 2;
      if (distance < least && fits(right, below)) [best, least] = [i, distance];
    }
    return best === null || Number.isNaN(least) ? [null, Infinity] : [best, Math.sqrt(least)];
  };
  const point = (item) => {
    here = item;
    tip.hidden = item === null;
    if (item !== null) {
      const [x, y] = places[item];
      const words = [label(item), ...issuesOf[item].map((issue) => kinds.get(issue.kind).title)].filter(Boolean);
      tip.replaceChildren(picture(item), element("div", {}, ...nameParts(item), ...words.map((text) => element("span", { class: "value" }, text))));
      tip.style.left = `${Math.max(0, Math.min(canvas.clientWidth - tip.offsetWidth, x < canvas.clientWidth / 2 ? x + 14 : x - 14 - tip.offsetWidth))}px`;
      const above = canvas.getBoundingClientRect().top + y > innerHeight / 2;
      tip.style.top = `${above ? y - 10 - tip.offsetHeight : y + 10}px`;
      spoken.textContent = [shownName(names[item]), ...words].join(", ");
    }
    draw();
  };
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const under = (event) => { const [item, distance] = nearest(...at(event)); return distance < 24 ? item : null; };
  const dragged = (event) => press && Math.hypot(at(event)[0] - press[0], at(event)[1] - press[1]) > 6;
  const corners = (event) => [0, 1].map((axis) => [Math.min(press[axis], at(event)[axis]), Math.max(press[axis], at(event)[axis])]);
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse") return; // a finger scrolls
    press = at(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    frame.hidden = !dragged(event);
    if (frame.hidden) { const item = under(event); if (item !== here) point(item); return; }
    const [[left, right], [top, bottom]] = corners(event);
    Object.assign(frame.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    tip.hidden = true;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (dragged(event)) {
      const [[left, right], [top, bottom]] = corners(event);
      select(order.filter((i) => places[i][0] >= left && places[i][0] <= right && places[i][1] >= top && places[i][1] <= bottom));
    } else if (under(event) !== null) opening = under(event);
    press = null;
    frame.hidden = true;
  });
  canvas.addEventListener("pointercancel", () => { press = null; frame.hidden = true; });
  canvas.addEventListener("click", () => { // opened earlier, the dialog would be closed by this very click
    if (opening !== null) viewer.open(opening);
    opening = null;
  });
  canvas.addEventListener("pointerleave", () => { if (!press) point(null); });
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way && !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    if (here === null) return point(nearest(canvas.clientWidth / 2, canvas.clientHeight / 2)[0]);
    if (event.key === "Enter") return viewer.open(here);
    if (event.key === " ") return toggle(here);
    const ahead = (a, b) => { const along = a * way[0] + b * way[1]; return along > 0 && along >= Math.abs(a * way[1] + b * way[0]); };
    const [next] = nearest(...places[here], ahead);
    if (next !== null) point(next);
  });
  const swatch = (colour) => { const made = element("i", { class: "swatch" }); made.style.background = colour; return made; };
  const showLegend = () => {
    if (colouring?.shades) legend.replaceChildren(element("span", {}, colouring.ends[0]), element("span", { class: "ramp" }, ...colouring.shades.map(swatch)), element("span", {}, colouring.ends[1]));
    else legend.replaceChildren(...(colouring?.legend ?? []).map(([colour, text]) => element("span", {}, swatch(colour), text)));
  };
  showLegend();
  const choice = element("select", { change: ({ target }) => { colouring = ways[target.value].make(); showLegend(); draw(); } }, ...ways.map(({ title }, i) => element("option", { value: i }, title)));
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  map = { draw };
  return [heading("Map", "Images that look alike to the encoder are close together. Click to open one, drag to select several.", ways.length ? element("label", { class: "check" }, "Colour by", choice) : null),
    legend, element("div", { class: "map" }, canvas, frame, tip), spoken];
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map?.draw());

// Tabs and cards
const views = [
  { id: "all", title: "All images", show: allView },
  { id: "map", title: "Map", show: mapView },
  { id: "label-first", title: "Label first", show: labelView },
  ...[...kinds.values()].map((kind) => ({ id: kind.id, title: kind.title, number: kind.total, show: issueView(kind) })),
];
const tabs = byId("tabs");
const choose = (id) => {
  map = null;
  for (const tab of tabs.children) {
    const chosen = tab.id === `tab-${id}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
  }
  panel.setAttribute("aria-labelledby", `tab-${id}`);
  panel.replaceChildren(...views.find((view) => view.id === id).show());
  const bar = tabs.parentElement;
  if (bar.getBoundingClientRect().top <= 0) panel.scrollIntoView(); // from the middle of a long list to the top of the next
};
for (const { id, title, number } of views) {
  tabs.append(element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "panel", click: () => choose(id) }, title, number ? element("span", { class: "number" }, number.toLocaleString("en")) : null));
}
tabs.addEventListener("keydown", (event) => {
  const all = [...tabs.children];
  const at = all.indexOf(event.target.closest("[role=tab]"));
  const to = { ArrowRight: all[(at + 1) % all.length], ArrowLeft: all.at(at - 1), Home: all[0], End: all.at(-1) }[event.key];
  if (!to) return;
  event.preventDefault();
  to.focus();
  to.click();
});
byId("cards").append(...[...kinds.values()].map((kind) => {
  const groups = new Set(kind.issues.map((issue) => issue.group)).size;
  const grouped = kind.issues.length === kind.total && kind.issues.some((issue) => issue.group !== null);
  const open = () => { choose(kind.id); panel.scrollIntoView(); panel.focus({ preventScroll: true }); };
  return element("li", {}, element("button", { type: "button", class: "card", title: kind.meaning, click: open },
    element("span", { class: "title" }, kind.title), element("span", { class: "big" }, kind.total.toLocaleString("en")),
    grouped ? element("span", { class: "soft" }, count(groups, "group")) : null));
}));

// One image with its numbers, issues and neighbours, in a panel at the side
const viewer = (() => {
  const dialog = byId("viewer");
  let past = [];
  let item = 0;
  const limit = (id, value) => (id === "ood_score" && data.threshold !== null ? `, ${value > data.threshold ? "above" : "within"} the limit of ${figure(data.threshold)}` : "");
  const facts = () => element("dl", {}, ...columns.map(({ id, title, values }) => element("div", {}, element("dt", {}, title), element("dd", {}, figure(values[item]) + limit(id, values[item])))));
  const meanings = () => element("details", {}, element("summary", {}, "What the numbers mean"),
    element("ul", {}, ...columns.filter(({ meaning }) => meaning).map(({ title, meaning }) => element("li", {}, element("strong", {}, title), ` ${meaning}`))));
  const show = () => {
    const place = order.indexOf(item);
    byId("previous").disabled = place <= 0;
    byId("next").disabled = place < 0 || place === order.length - 1;
    byId("back").hidden = !past.length;
    const found = Array.from({ length: item < images ? near : 0 }, (_, j) => item * near + j).filter((j) => neighbours[j] >= 0 && neighbours[j] !== item);
    const far = new Map(found.map((j) => [neighbours[j], distances[j]]));
    const box = element("div", { class: "check", "data-item": item }, element("label", {}, element("input", { type: "checkbox" }), "Select this image"));
    mark(box);
    const address = fileAddress(item);
    byId("shown").replaceChildren(
      element("div", { class: "large" }, picture(item)),
      element("h2", { id: "viewer-name" }, element("bdi", {}, shownName(names[item]))),
      label(item) ? element("p", { class: "soft" }, `Class ${label(item)}`) : "",
      element("div", { class: "acts" }, box, address ? element("a", { href: address, target: "_blank", rel: "noreferrer" }, "Open the file") : null),
      issuesOf[item].length ? element("ul", { class: "issues" }, ...issuesOf[item].map((issue) => element("li", {}, element("strong", {}, kinds.get(issue.kind).title),
        element("bdi", {}, [issue.note, issue.action || kinds.get(issue.kind).action].filter(Boolean).map(shownName).join(" · "))))) : element("p", { class: "soft" }, "No issue found."),
      ...(item < images ? [facts(), meanings()] : []),
      ...(far.size ? [element("h3", {}, "Looks like this one"), element("p", { class: "soft" }, "Nearest first, with the distance of the features."),
        element("div", { class: "list" }, ...tiles([...far.keys()], (other) => tile(other, [figure(far.get(other)), label(other)])))] : []));
    dialog.scrollTop = 0;
  };
  const go = (to) => { item = to; show(); };
  const step = (way) => { const to = order[order.indexOf(item) + way]; if (to !== undefined && order.includes(item)) { past = []; go(to); } };
  byId("back").addEventListener("click", () => { go(past.pop()); byId("back").hidden = !past.length; });
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest(".open")) return; // there, arrows move between neighbours
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way) step(way);
  });
  return {
    open: (to, fromHere = false) => {
      past = fromHere ? [...past, item] : [];
      go(to);
      if (!dialog.open) dialog.showModal();
      else dialog.querySelector("form button:not([hidden])").focus(); // the one that was pressed is gone
    },
  };
})();

byId("clear").addEventListener("click", () => { selected.clear(); selectionChanged(); });
byId("review").addEventListener("click", () => { Object.assign(state, { text: "", label: "", only: true }); choose("all"); });
choose(data.kinds[0]?.id ?? "all");
