// Many: all workers of a server on one page. Owns a card per worker; its cache is another page.

import { element, forgetColours, sparkline } from "./draw.js";
import { goLive } from "./live.js";
import { count, many, percent, short } from "./words.js";

const MOST_HISTORY = 120;
const STATES = { EXACT: "exact", REPAIRING: "repairing", UNKNOWN: "unknown" };
const byId = (id) => document.getElementById(id);
const state = { history: [], last: null, cards: new Map() };

const put = (place, text) => {
  if (place.textContent !== text) place.textContent = text;
};

function take(told) {
  const briefs = told.workers.map((one) => one.brief).filter(Boolean);
  const sum = (name) => briefs.reduce((some, brief) => some + brief[name], 0);
  const inFlight = told.workers.reduce((some, one) => some + one.in_flight, 0);
  const exact = told.workers.filter((one) => one.status === "EXACT" && one.brief).length;
  const row = { tokens: sum("tokens"), reused: sum("reused"), running: sum("running"), waiting: sum("waiting"), inFlight, exact, choices: told.totals.choices };
  state.history = [...state.history, row].slice(-MOST_HISTORY);
  state.last = told;
  show();
}

function show() {
  const { last, history } = state;
  if (!last) return;
  const [now, totals] = [history.at(-1), last.totals];
  put(byId("name"), last.name || "all workers");
  put(byId("headline"), headline(last.workers.length, now));
  put(byId("hit"), percent(now.reused, now.tokens));
  put(byId("hit-note"), now.tokens ? `of ${short(now.tokens)} prompt tokens came out of some worker’s cache` : "no prompt has come yet");
  put(byId("asking"), count(now.inFlight));
  put(byId("asking-note"), now.inFlight ? `requests with workers; ${count(now.running)} hold pages, ${count(now.waiting)} wait for room` : "no request right now");
  put(byId("there"), count(last.workers.length));
  put(byId("there-note"), now.exact === last.workers.length ? "what each has cached is known exactly" : `${count(now.exact)} of them known exactly`);
  put(byId("choices"), short(totals.choices));
  put(byId("choices-note"), choicesNote(totals));
  sparkline(byId("hit-line"), history.map((row) => (row.tokens ? row.reused / row.tokens : 0)), "--reused", 1);
  sparkline(byId("asking-line"), history.map((row) => row.inFlight), "--answer");
  sparkline(byId("there-line"), history.map((row) => row.exact), "--held", Math.max(1, last.workers.length));
  sparkline(byId("choices-line"), history.slice(1).map((row, at) => row.choices - history[at].choices), "--claimed");
  showCards(last.workers);
  put(byId("left-out"), last.left_out ? `${many(last.left_out, "worker more is", "workers more are")} not shown.` : "");
  put(byId("foot"), "No prompt, no token and no salt is on this page.");
}

function headline(number, now) {
  if (!number) return "There is no worker yet.";
  const who = many(number, "worker", "workers");
  if (!now.tokens) return `${who}, and no request has come yet.`;
  return `${who}: ${percent(now.reused, now.tokens)} of all prompt tokens were already in memory.`;
}

function choicesNote(totals) {
  const each = totals.choices ? `each took ${count((1e6 * totals.choice_seconds) / totals.choices)} µs` : "none was made yet";
  return totals.lost ? `${each}; ${many(totals.lost, "answer", "answers")} lost a worker, ${count(totals.resumed)} went on` : each;
}

// -- a card per worker ---------------------------------------------------------------------------------------------------

function showCards(workers) {
  const names = new Set(workers.map((one) => one.worker));
  for (const [name, card] of state.cards) {
    if (names.has(name)) continue;
    card.place.remove();
    state.cards.delete(name);
  }
  for (const one of workers) {
    if (!state.cards.has(one.worker)) state.cards.set(one.worker, newCard(one.worker));
    fill(state.cards.get(one.worker), one);
  }
  let empty = byId("list").querySelector(".empty");
  if (!workers.length && !empty) {
    empty = element("li", "empty", "No worker is there. Requests wait, and get 503 when none comes in time.");
    byId("list").append(empty);
  } else if (workers.length && empty) empty.remove();
}

function newCard(name) {
  const place = element("li", "worker");
  const head = element("div", "worker-head");
  const [title, chip] = [element("h3", "", name), element("span", "chip")];
  chip.append(element("i"), element("span"));
  head.append(title, chip);
  const facts = element("dl", "facts");
  const values = ["hit rate", "under way", "waiting"].map((word) => {
    const [pair, value] = [element("div"), element("dd", "", "–")];
    pair.append(element("dt", "", word), value);
    facts.append(pair);
    return value;
  });
  const [tiers, open] = [element("div", "worker-tiers"), element("a", "button", "Open its cache")];
  open.href = `/worker?worker=${encodeURIComponent(name)}`;
  open.setAttribute("aria-label", `Open the cache of worker ${name}`);
  place.append(head, facts, tiers, open);
  byId("list").append(place);
  return { place, chip, values, tiers };
}

function fill(card, one) {
  const { brief } = one;
  const kind = brief ? STATES[one.status] || "unknown" : "silent";
  card.chip.className = `chip ${kind}`;
  put(card.chip.lastChild, kind);
  const told = brief ? [percent(brief.reused, brief.tokens), count(one.in_flight), count(brief.waiting)] : ["–", count(one.in_flight), "–"];
  card.values.forEach((value, at) => put(value, told[at]));
  card.place.classList.toggle("quiet", !brief);
  if (!brief) return;
  while (card.tiers.children.length < brief.tiers.length) card.tiers.append(newTier());
  brief.tiers.forEach((tier, at) => fillTier(card.tiers.children[at], tier));
}

function newTier() {
  const [made, head, bar] = [element("div"), element("p", "tier-line"), element("div", "bar")];
  head.append(element("b"), element("span"));
  bar.append(element("i", "held"), element("i", "cached"));
  bar.setAttribute("role", "img");
  made.append(head, bar);
  return made;
}

function fillTier(made, tier) {
  const [head, bar] = made.children;
  const share = (part) => `${(100 * part) / Math.max(1, tier.slots)}%`;
  put(head.firstChild, tier.name);
  put(head.lastChild, `${percent(tier.held + tier.cached, tier.slots)} of ${short(tier.slots)} pages`);
  bar.children[0].style.width = share(tier.held);
  bar.children[1].style.width = share(tier.cached);
  bar.setAttribute("aria-label", `${tier.name}: ${count(tier.held)} pages in use, ${count(tier.cached)} cached, of ${count(tier.slots)}`);
}

goLive({ question: () => "/viewer/workers", take, show, recolour: forgetColours });
