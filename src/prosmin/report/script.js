"use strict";

// Light and dark: the system's choice until the reader makes one. Storage may be closed to local files.
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

// Reading a curve: under the pointer, or with the arrow keys.
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
    readout.textContent = curves.map((curve) => curve.text[nearest(curve.at, there)]).join(" · ");
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

// A picture in full: its key may be longer than a caption holds.
(() => {
  const viewer = document.getElementById("viewer");
  const image = viewer.querySelector("img");
  for (const button of document.querySelectorAll(".pictures button")) {
    button.addEventListener("click", () => {
      const source = button.querySelector("img");
      image.src = source.src;
      image.alt = source.alt;
      image.className = source.className;
      document.getElementById("viewer-label").textContent = button.dataset.label;
      viewer.querySelector(".value").textContent = button.dataset.value;
      viewer.querySelector(".key").textContent = button.dataset.key;
      viewer.showModal();
    });
  }
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
})();
