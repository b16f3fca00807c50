"use strict";

// Light and dark: the system's choice until the reader makes one. Browsers may forbid storage to local files.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("prosmin-theme"); } catch { return null; } };
  const show = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    return dark;
  };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  show();
  button.hidden = false;
  system.addEventListener("change", show);
  button.addEventListener("click", () => {
    root.dataset.theme = show() ? "light" : "dark";
    try { localStorage.setItem("prosmin-theme", root.dataset.theme); } catch { /* kept for this visit only */ }
    show();
  });
})();

// What is too wide scrolls: its cut edges are shaded, and only then the keyboard can reach it.
for (const scroller of document.querySelectorAll(".scroller")) {
  const edge = scroller.parentElement;
  const hint = edge.nextElementSibling?.matches(".hint") ? edge.nextElementSibling : null;
  const look = () => {
    const hidden = scroller.scrollWidth - scroller.clientWidth;
    const more = [];
    if (scroller.scrollLeft > 1) more.push("left");
    if (hidden - scroller.scrollLeft > 1) more.push("right");
    edge.dataset.more = more.join(" ");
    if (hint) hint.hidden = hidden <= 1;
    if (scroller.getAttribute("role") !== "region") return; // the links of the sections can be focused themselves
    if (hidden > 1 || scroller.scrollHeight > scroller.clientHeight + 1) scroller.tabIndex = 0;
    else scroller.removeAttribute("tabindex");
  };
  scroller.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(scroller);
}

// The visible section is marked in the bar at the top.
(() => {
  const bar = document.querySelector("nav .scroller");
  const links = new Map([...bar.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      const link = links.get(target.id);
      link.setAttribute("aria-current", "true");
      bar.scrollLeft = link.offsetLeft - (bar.clientWidth - link.offsetWidth) / 2;
    }
  }, { rootMargin: "-25% 0px -74% 0px" });
  for (const section of document.querySelectorAll("main > section")) seen.observe(section);
})();

// The values of a curve are shown under the pointer, or with the arrow keys.
for (const plot of document.querySelectorAll(".plot[data-readout]")) {
  const curves = JSON.parse(plot.dataset.readout).filter((curve) => curve.at.length);
  const cursor = plot.querySelector(".cursor");
  const readout = plot.closest("figure").querySelector(".readout");
  let place = 0;
  const nearest = (at, share) => at.reduce((best, value, i) => (Math.abs(value - share) < Math.abs(at[best] - share) ? i : best), 0);
  const read = (share) => {
    if (!curves.length) return;
    place = nearest(curves[0].at, share);
    const there = curves[0].at[place];
    cursor.hidden = false;
    cursor.style.left = `${100 * there}%`;
    readout.textContent = curves.map((curve) => curve.text[nearest(curve.at, there)]).join("\n");
    const room = plot.clientWidth - readout.offsetWidth;
    readout.style.left = `${Math.max(0, Math.min(room, there * plot.clientWidth - readout.offsetWidth / 2))}px`;
  };
  const clear = () => { cursor.hidden = true; readout.textContent = ""; };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    read((event.clientX - box.left) / box.width);
  });
  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("blur", clear);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !curves.length) return;
    event.preventDefault();
    const next = cursor.hidden ? place : place + step;
    read(curves[0].at[Math.max(0, Math.min(curves[0].at.length - 1, next))]);
  });
}

// The images of a run: names and neighbours in one block of JSON, all thumbnails in one image that is drawn in pieces.
const albumOf = (() => {
  const kept = new Map();
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  return (run) => {
    if (!document.getElementById(`album-${run}`)) return null;
    if (!kept.has(run)) {
      const album = read(`album-${run}`);
      album.image = new Image();
      album.image.src = read(`sheet-${run}`);
      kept.set(run, album);
    }
    return kept.get(run);
  };
})();
const paint = (canvas, album, i) => {
  const { tile, columns, image } = album;
  canvas.width = canvas.height = tile;
  canvas.className = tile <= 48 ? "pixelated" : "";
  const draw = () => canvas.getContext("2d").drawImage(image, tile * (i % columns), tile * Math.floor(i / columns), tile, tile, 0, 0, tile, tile);
  if (image.complete) draw();
  else image.addEventListener("load", draw, { once: true });
};
const wordsOf = (album, i) => ({
  label: album.labels[album.label[i]] || album.key[i],
  value: `${album.strange[album.set[i]] ? "score" : "uncertainty"} ${album.value[i]}`,
  key: album.key[i],
});

// One image in full, with its whole key and the images nearest to it.
const viewer = (() => {
  const dialog = document.getElementById("viewer");
  const [image, canvas, near] = ["img", ".shown canvas", ".near"].map((name) => dialog.querySelector(name));
  const show = (words) => {
    document.getElementById("viewer-label").textContent = words.label;
    dialog.querySelector(".value").textContent = words.value;
    dialog.querySelector(".key").textContent = words.key;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  const neighbour = (album, i, j, like, open) => {
    const words = wordsOf(album, j);
    const item = document.createElement("li");
    const add = (name, text, className) => {
      const part = item.appendChild(document.createElement(name));
      part.textContent = text;
      part.className = className;
      return part;
    };
    if (j < album.near.length) {
      const button = add("button", "", "");
      button.type = "button";
      button.setAttribute("aria-label", `${words.label}: open`);
      paint(button.appendChild(document.createElement("canvas")), album, j);
      button.addEventListener("click", () => open(j));
    } else add("div", "not kept", "blank");
    add("span", words.label, "label").title = words.key;
    add("span", like.toFixed(4), "").title = "cosine";
    add("span", album.value[j], "").title = "uncertainty";
    if (album.labels[album.label[i]] && !album.strange[album.set[i]]) item.className = album.label[i] === album.label[j] ? "same" : "other";
    return item;
  };
  const list = (album, i) => {
    near.hidden = !album;
    if (!album) return;
    near.querySelector("ol").replaceChildren(...album.near[i].map((j, k) => neighbour(album, i, j, album.like[i][k], (next) => open(album, next))));
  };
  const open = (album, i) => {
    image.hidden = true;
    canvas.hidden = false;
    paint(canvas, album, i);
    canvas.setAttribute("aria-label", wordsOf(album, i).label);
    list(album, i);
    show(wordsOf(album, i));
  };
  for (const button of document.querySelectorAll(".pictures button")) {
    button.addEventListener("click", () => {
      const source = button.querySelector("img");
      image.hidden = false;
      canvas.hidden = true;
      image.src = source.src;
      image.alt = source.alt;
      image.className = source.className;
      const [run, place] = (button.dataset.place || "").split(":");
      list(place ? albumOf(run) : null, Number(place));
      show(button.dataset);
    });
  }
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return open;
})();

// The map: the image under the pointer, or reached with the arrow keys, is opened by a click or Enter.
for (const figure of document.querySelectorAll(".atlas")) {
  const [plot, spot, tip, readout] = [".plot", ".spot", ".tip", ".readout"].map((name) => figure.querySelector(name));
  const album = () => albumOf(figure.dataset.run);
  const svg = plot.querySelector("svg");
  const frame = () => { // where the drawing lies in its box, in pixels
    const [box, place, view] = [plot.getBoundingClientRect(), svg.getScreenCTM(), svg.viewBox.baseVal];
    return { left: place.e - box.left, top: place.f - box.top, width: place.a * view.width, height: place.d * view.height };
  };
  const REACH = 24; // pixels: an image further from the pointer is not selected
  let here = null;
  const clear = () => { here = null; spot.hidden = tip.hidden = true; readout.textContent = ""; };
  const point = (i) => {
    const [x, y] = album().at[i];
    const words = wordsOf(album(), i);
    const { left, top, width, height } = frame();
    here = i;
    for (const part of [spot, tip]) {
      part.hidden = false;
      part.style.left = `${left + x * width}px`;
      part.style.top = `${top + y * height}px`;
    }
    tip.style.transform = `translate(${x < 0.5 ? "14px" : "calc(-100% - 14px)"}, ${y < 0.5 ? "8px" : "calc(-100% - 8px)"})`;
    paint(tip.querySelector("canvas"), album(), i);
    tip.querySelector(".label").textContent = words.label;
    tip.querySelector(".value").textContent = words.value;
    readout.textContent = [...new Set([words.label, words.value, words.key])].join(" · ");
  };
  const nearest = (x, y, fits = () => true) => { // places are shares of width and height, distances shares of the width
    const { width, height } = frame();
    let best = null;
    let least = Infinity;
    album().at.forEach(([a, b], i) => {
      const [right, down] = [a - x, (b - y) * (height / width)];
      const distance = right ** 2 + down ** 2;
      if (distance < least && fits(right, down)) [best, least] = [i, distance];
    });
    return [best, Math.sqrt(least)];
  };
  const under = (event) => {
    const box = plot.getBoundingClientRect();
    const { left, top, width, height } = frame();
    const [i, distance] = nearest((event.clientX - box.left - left) / width, (event.clientY - box.top - top) / height);
    return distance * width < REACH ? i : null;
  };
  plot.addEventListener("pointermove", (event) => {
    const i = under(event);
    if (i === null) clear();
    else if (i !== here) point(i);
  });
  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("blur", clear);
  plot.addEventListener("click", (event) => {
    const i = under(event);
    if (i !== null) viewer(album(), i);
  });
  plot.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way && event.key !== "Enter") return;
    event.preventDefault(); // Enter would press the dialog's first button, which closes it
    if (!way) return here === null ? undefined : viewer(album(), here);
    if (here === null) return point(nearest(0.5, 0.5)[0]);
    const ahead = (a, b) => { const along = a * way[0] + b * way[1]; return along > 0 && along >= Math.abs(a * way[1] + b * way[0]); };
    const [next] = nearest(...album().at[here], ahead);
    if (next !== null) point(next);
  });
  for (const button of figure.querySelectorAll(".choice button")) {
    button.addEventListener("click", () => {
      figure.dataset.colour = button.dataset.by;
      for (const other of figure.querySelectorAll(".choice button")) other.setAttribute("aria-pressed", other === button);
      highlight(null);
    });
  }
  const buttons = [...figure.querySelectorAll(".legend button")];
  const highlight = (chosen) => {
    svg.classList.toggle("dimmed", Boolean(chosen));
    for (const button of buttons) button.setAttribute("aria-pressed", button === chosen);
    for (const dot of plot.querySelectorAll(".dot")) dot.classList.toggle("lit", Boolean(chosen) && dot.classList.contains(chosen.dataset.style));
  };
  for (const button of buttons) button.addEventListener("click", () => highlight(button.getAttribute("aria-pressed") === "true" ? null : button));
}
