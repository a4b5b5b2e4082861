// Page: asks for snapshots while the page is visible, and hands them to the panels. Owns what they add up to, and the choices.

import { COLOURS, redrawMaps, showLegend, showMaps } from "./maps.js";
import { showRegret } from "./regret.js";
import { flowsOf, listenToSteps, showMisses, showRequests, showSteps, showTiles } from "./panels.js";
import { openReceipt } from "./receipt.js";
import { listenToTree, showPrefixes } from "./tree.js";
import { hideTip } from "./draw.js";
import { ask, goLive, poll } from "./live.js";

const MOST_HISTORY = 300;
const byId = (id) => document.getElementById(id);
const state = { colour: "state", history: [], last: null };

const worker = new URLSearchParams(window.location.search).get("worker"); // one of many: its server passes questions on
byId("back").hidden = !worker;
const of = (path) => (worker ? `${path}&worker=${encodeURIComponent(worker)}` : path);

const question = () => of(`/viewer/snapshot?colour=${state.colour}${state.history.length ? "" : "&history=1"}`);

function take(snapshot) {
  if (snapshot.history) state.history = snapshot.history;
  if (state.history.at(-1)?.[0] !== snapshot.now[0]) state.history.push(snapshot.now);
  state.history = state.history.slice(-MOST_HISTORY);
  state.last = snapshot;
  show();
}

function show() {
  const { last, history } = state;
  if (!last) return;
  byId("name").textContent = worker ? `worker ${last.name}` : last.name || "the live cache";
  byId("foot").textContent = last.shows_tokens ? "This page shows prompts: the server was started with that option." : "No prompt, no token and no salt is on this page.";
  showTiles(last, history);
  showLegend(last);
  showMaps(last, flowsOf(history));
  showRequests(last, (number) => openReceipt(number, (path) => ask(of(path))));
  showMisses(last);
  showRegret(last);
  showSteps(last, history);
  showPrefixes(last);
}

// -- choices -------------------------------------------------------------------------------------------------------------

const choices = COLOURS.map(([name, word]) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = word;
  button.setAttribute("role", "radio");
  button.addEventListener("click", () => chooseColour(name));
  button.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = (COLOURS.findIndex(([one]) => one === name) + by + COLOURS.length) % COLOURS.length;
    chooseColour(COLOURS[at][0]);
    choices[at].focus();
  });
  return button;
});
byId("colours").append(...choices);

function chooseColour(name) {
  state.colour = name;
  choices.forEach((button, at) => {
    button.setAttribute("aria-checked", String(COLOURS[at][0] === name));
    button.tabIndex = COLOURS[at][0] === name ? 0 : -1;
  });
  poll();
}

window.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});

listenToSteps();
listenToTree();
goLive({ question, take, show, recolour: redrawMaps, ended: worker && "this worker has ended" });
chooseColour("state");
