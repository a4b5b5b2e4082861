// Live: asks the server again and again while the page is visible. Owns the pace, the key, the pause and the theme of a page.

const THEMES = ["auto", "light", "dark"];
const byId = (id) => document.getElementById(id);
const state = { paused: false, key: null, timer: 0, asking: false, failures: 0 };
let page = null; // { question(), take(told), show(), recolour(), ended }: what it asks, and what becomes of the answer

try {
  state.key = sessionStorage.getItem("quire-key");
} catch {
  // without storage the key is asked for again
}

export const ask = (path) => fetch(path, { headers: state.key ? { authorization: `Bearer ${state.key}` } : {}, cache: "no-store" });

function tellStatus(kind, text) {
  byId("status").className = `status ${kind}`;
  const place = byId("status").lastChild;
  if (place.textContent !== text) place.textContent = text;
}

export async function poll() {
  clearTimeout(state.timer);
  if (state.asking || state.paused || document.hidden) return;
  state.asking = true;
  let wait = 2000;
  try {
    const reply = await ask(page.question());
    if (reply.status === 401) {
      needKey();
      return;
    }
    if (reply.status === 404 && page.ended) {
      tellStatus("lost", page.ended);
      return;
    }
    if (!reply.ok) throw new Error(String(reply.status));
    const told = await reply.json();
    wait = Math.max(250, 1000 * told.pace);
    state.failures = 0;
    if (state.paused) return; // it was asked for before
    byId("main").hidden = false;
    page.take(told);
    tellStatus("live", "live");
  } catch {
    state.failures += 1;
    wait = Math.min(10_000, 1000 * 2 ** state.failures);
    if (!state.paused) tellStatus("lost", "no answer, trying again");
  } finally {
    state.asking = false;
    if (byId("login").hidden) state.timer = setTimeout(poll, wait);
  }
}

function needKey() {
  byId("main").hidden = true;
  byId("login").hidden = false;
  byId("denied").textContent = state.key ? "That is not the key." : "";
  tellStatus("", "locked");
  byId("key").focus();
}

function login(event) {
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
}

function pause() {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", String(state.paused));
  byId("pause").textContent = state.paused ? "Go on" : "Pause";
  if (state.paused) tellStatus("", "paused");
  poll();
}

const tellTheme = () => (byId("theme").textContent = `Theme: ${document.documentElement.dataset.chosen}`);

export function goLive(given) {
  page = given;
  byId("login").addEventListener("submit", login);
  byId("pause").addEventListener("click", pause);
  byId("theme").addEventListener("click", () => {
    window.chooseTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.chosen) + 1) % THEMES.length]);
  });
  window.addEventListener("quire-theme", () => {
    tellTheme();
    page.recolour();
    page.show();
  });
  let resized = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(page.show);
  });
  document.addEventListener("visibilitychange", poll);
  tellTheme();
  poll();
}
