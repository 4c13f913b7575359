"use strict";
const scenes = [...document.querySelectorAll(".scene")];
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
let now = 0;

function mark(place) {
  links.get(scenes[now]?.id)?.classList.remove("now");
  now = place;
  const link = links.get(scenes[now]?.id);
  link?.classList.add("now");
  link?.scrollIntoView({ block: "nearest" });
}

function show(place) {
  if (place < 0 || place >= scenes.length) return;
  mark(place);
  scenes[place].scrollIntoView({ block: "start" });
}

addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const step = { ArrowRight: 1, ArrowLeft: -1, j: 1, k: -1 }[event.key];
  const end = { Home: 0, End: scenes.length - 1 }[event.key];
  if (step === undefined && end === undefined) return;
  event.preventDefault();
  show(end ?? now + step);
});
addEventListener("hashchange", () => mark(Math.max(0, scenes.findIndex((scene) => `#${scene.id}` === location.hash))));
if (scenes.length > 0) mark(Math.max(0, scenes.findIndex((scene) => `#${scene.id}` === location.hash)));
