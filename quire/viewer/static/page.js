// Page: asks for snapshots while somebody looks, and hands them to the panels. Owns the pace, the key and the choices.

import { COLOURS, redrawMaps, showLegend, showMaps } from "./maps.js";
import { showRegret } from "./regret.js";
import { flowsOf, listenToSteps, showMisses, showRequests, showSteps, showTiles } from "./panels.js";
import { openReceipt } from "./receipt.js";
import { listenToTree, showPrefixes } from "./tree.js";
import { hideTip } from "./draw.js";

const MOST_HISTORY = 300;
const byId = (id) => document.getElementById(id);
const state = { colour: "state", history: [], last: null, paused: false, key: null, timer: 0, asking: false, failures: 0 };

try {
  state.key = sessionStorage.getItem("quire-key");
} catch {
  // without storage the key is asked for again
}

const worker = new URLSearchParams(window.location.search).get("worker"); // one of many: its server passes questions on
byId("back").hidden = !worker;
const ask = (path) => fetch(worker ? `${path}&worker=${encodeURIComponent(worker)}` : path, { headers: state.key ? { authorization: `Bearer ${state.key}` } : {}, cache: "no-store" });

function tellStatus(kind, text) {
  byId("status").className = `status ${kind}`;
  const place = byId("status").lastChild;
  if (place.textContent !== text) place.textContent = text;
}

async function poll() {
  clearTimeout(state.timer);
  if (state.asking || state.paused || document.hidden) return;
  state.asking = true;
  let wait = 2000;
  try {
    const reply = await ask(`/viewer/snapshot?colour=${state.colour}${state.history.length ? "" : "&history=1"}`);
    if (reply.status === 401) {
      needKey();
      return;
    }
    if (reply.status === 404 && worker) {
      tellStatus("lost", "this worker has ended");
      return;
    }
    if (!reply.ok) throw new Error(String(reply.status));
    const snapshot = await reply.json();
    wait = Math.max(250, 1000 * snapshot.pace);
    state.failures = 0;
    if (state.paused) return; // it was asked for before
    take(snapshot);
    tellStatus("live", "live");
  } catch {
    state.failures += 1;
    wait = Math.min(10_000, 1000 * 2 ** state.failures);
    if (state.paused) return;
    tellStatus("lost", "no answer, trying again");
  } finally {
    state.asking = false;
    if (byId("login").hidden) state.timer = setTimeout(poll, wait);
  }
}

function take(snapshot) {
  if (snapshot.history) state.history = snapshot.history;
  if (state.history.at(-1)?.[0] !== snapshot.now[0]) state.history.push(snapshot.now);
  state.history = state.history.slice(-MOST_HISTORY);
  byId("main").hidden = false;
  state.last = snapshot;
  show();
}

function show() {
  const { last, history } = state;
  if (!last) return;
  byId("name").textContent = worker ? `worker ${last.name}` : last.name || "the live cache";
  byId("foot").textContent = last.shows_tokens ? "This page shows prompts: whoever started the server asked for that." : "No prompt, no token and no salt is on this page.";
  showTiles(last, history);
  showLegend(last);
  showMaps(last, flowsOf(history));
  showRequests(last, (number) => openReceipt(number, ask));
  showMisses(last);
  showRegret(last);
  showSteps(last, history);
  showPrefixes(last);
}

function needKey() {
  byId("main").hidden = true;
  byId("login").hidden = false;
  byId("denied").textContent = state.key ? "That is not the key." : "";
  tellStatus("", "locked");
  byId("key").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = byId("key").value.trim();
  try {
    sessionStorage.setItem("quire-key", state.key);
  } catch {
    // it is kept until the page is left
  }
  byId("login").hidden = true;
  byId("key").value = "";
  poll();
});

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

byId("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", String(state.paused));
  byId("pause").textContent = state.paused ? "Go on" : "Pause";
  if (state.paused) tellStatus("", "paused");
  poll();
});

const THEMES = ["auto", "light", "dark"];
const tellTheme = () => (byId("theme").textContent = `Theme: ${document.documentElement.dataset.chosen}`);
byId("theme").addEventListener("click", () => {
  window.chooseTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.chosen) + 1) % THEMES.length]);
});
window.addEventListener("quire-theme", () => {
  tellTheme();
  redrawMaps();
  show();
});

let resized = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(show);
});
window.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
document.addEventListener("visibilitychange", poll);

tellTheme();
listenToSteps();
listenToTree();
chooseColour("state");
