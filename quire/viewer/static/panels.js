// Panels: tiles, requests, misses and steps. Each takes a snapshot and shows it.

import { colour, element, hideTip, ready, showTip, sparkline } from "./draw.js";
import { scopeColour } from "./maps.js";
import { CAUSE_COLOURS, CAUSES, count, headline, many, percent, rate, short } from "./words.js";

const byId = (id) => document.getElementById(id);
const put = (id, text) => {
  if (byId(id).textContent !== text) byId(id).textContent = text;
};

// Numbers of the history, by name.
const NAMES = ["time", "running", "waiting", "used", "tokens", "reused", "reused_full", "reused_partial", "missed", "grown",
  "onboarded", "offloaded", "copied", "dropped", "demoted", "copied_down", "prefetched", "reused_pending"];
const AT = Object.fromEntries(NAMES.map((name, at) => [name, at]));
const column = (history, name) => history.map((row) => row[AT[name]]);

// Per second, between one moment and the next.
export function rates(history, ...names) {
  const found = [];
  for (let at = 1; at < history.length; at += 1) {
    const seconds = Math.max(1e-3, history[at][AT.time] - history[at - 1][AT.time]);
    const more = names.reduce((sum, name) => sum + history[at][AT[name]] - history[at - 1][AT[name]], 0);
    found.push(seconds > 30 ? 0 : Math.max(0, more / seconds)); // the page was hidden for a while
  }
  return found;
}

export function flowsOf(history) {
  const recent = history.slice(-90);
  return {
    first: { up: rates(recent, "onboarded"), down: rates(recent, "offloaded", "demoted") },
    slow: { up: rates(recent, "prefetched"), down: rates(recent, "copied_down") },
    gone: rates(recent, "dropped"),
  };
}

// -- tiles ---------------------------------------------------------------------------------------------------------------

export function showTiles(snapshot, history) {
  const { reuse, requests } = snapshot;
  const device = snapshot.pools.filter((pool) => pool.tier === 0);
  const slots = device.reduce((sum, pool) => sum + pool.slots, 0);
  const of = (...states) => device.reduce((sum, pool) => sum + states.reduce((some, state) => some + pool.counts[state], 0), 0);
  const used = slots - of(0);
  put("headline", headline(reuse, requests, used));
  const pages = snapshot.moved[0];
  const found = pages.reused_full + pages.reused_partial;
  const [part, whole] = reuse.tokens ? [reuse.reused, reuse.tokens] : [found, found + pages.missed];
  put("hit", percent(part, whole));
  put("hit-note", whole ? `of ${short(whole)} ${reuse.tokens ? "prompt tokens" : "blocks of prompts"} came out of the cache` : "no prompt has come yet");
  put("saved", short(reuse.tokens ? reuse.reused : found * snapshot.block));
  const early = pages.reused_pending ? `; ${percent(pages.reused_pending, found)} of their pages while a step computed them` : "";
  put("saved-note", `prompt tokens that were reused, not computed${early}`);
  const [busy, cached] = [of(1, 2, 3, 6), of(4, 5)];
  put("full", percent(busy, slots));
  put("full-note", `of ${short(slots)} pages in use; ${short(cached)} hold what is cached, ${short(of(0))} are free`);
  put("asking", count(requests.running));
  put("asking-note", requests.waiting ? `being answered, ${count(requests.waiting)} waiting` : requests.running ? "being answered, none waits" : "no request right now");
  const recent = history.slice(-120);
  sparkline(byId("hit-line"), windowed(recent), "--reused", 1);
  sparkline(byId("saved-line"), reuse.tokens ? rates(recent, "reused") : rates(recent, "reused_full"), "--reused");
  sparkline(byId("full-line"), column(recent, "used"), "--held", slots);
  sparkline(byId("asking-line"), column(recent, "running"), "--answer");
}

// Hit rate of the last few moments.
function windowed(history) {
  const [asked, found] = history.length && history.at(-1)[AT.tokens] ? [["tokens"], ["reused"]] : [["reused_full", "missed"], ["reused_full"]];
  const sum = (row, names) => names.reduce((some, name) => some + row[AT[name]], 0);
  const values = [];
  history.forEach((row, at) => {
    const before = history[Math.max(0, at - 12)];
    const more = sum(row, asked) - sum(before, asked);
    if (more > 0) values.push((sum(row, found) - sum(before, found)) / more);
    else if (values.length) values.push(values.at(-1));
  });
  return values;
}

// -- requests ------------------------------------------------------------------------------------------------------------

const rows = new Map(); // number -> its elements
const PARTS = [
  ["--reused", "reused"], ["--colder", "reused from a slower memory"], ["--computed", "computed"], ["--todo", "still to compute"], ["--answer", "answer so far"],
];

export function showRequests(snapshot, open) {
  const { requests } = snapshot;
  const list = byId("running");
  if (!byId("request-legend").children.length) {
    byId("request-legend").append(...PARTS.map(([name, word]) => legendItem(name, word)));
  }
  const longest = Math.max(1, ...requests.rows.map((row) => row[4]));
  const seen = new Set();
  for (const row of requests.rows) {
    seen.add(row[0]);
    if (!rows.has(row[0])) rows.set(row[0], newRow(row[0], list, open));
    fillRow(rows.get(row[0]), row, longest, snapshot);
  }
  for (const [number, made] of rows) {
    if (!seen.has(number)) {
      made.item.remove();
      rows.delete(number);
    }
  }
  emptyState(list, requests.rows.length, snapshot);
  const hidden = requests.running - requests.rows.length;
  put("more-running", hidden > 0 ? `and ${count(hidden)} more, not shown` : "");
  byId("waiting-title").hidden = !requests.waits.length;
  byId("waits").replaceChildren(...requests.waits.map(waitItem));
  if (requests.waiting > requests.waits.length) byId("waits").append(element("li", "", `and ${count(requests.waiting - requests.waits.length)} more`));
}

function emptyState(list, number, snapshot) {
  const told = list.querySelector(".empty");
  if (number && told) told.remove();
  if (!number && !told) {
    const cached = snapshot.blocks ? "What earlier prompts left behind is cached and waits for the next one." : "Send a prompt, and it appears here.";
    list.append(element("li", "empty", `No request right now. ${cached}`));
  }
}

function legendItem(name, word) {
  const item = element("li");
  const mark = element("span", "key");
  mark.style.background = `var(${name})`;
  item.append(mark, word);
  return item;
}

function newRow(number, list, open) {
  const item = element("li");
  const button = element("button");
  button.type = "button";
  const bar = element("span", "bar track");
  bar.append(...PARTS.map(([name]) => {
    const part = element("i");
    part.style.background = `var(${name})`;
    return part;
  }));
  const what = element("span", "what");
  const [who, dot] = [element("span", "who"), element("i")];
  who.append(dot, `#${number}`);
  button.append(who, bar, what);
  button.addEventListener("click", () => open(number));
  item.append(button);
  list.append(item);
  return { item, button, bar, what, dot };
}

function fillRow(made, row, longest, snapshot) {
  const [number, scope, reused, prompt, known, computed, , from] = row;
  made.dot.style.background = `var(${scopeColour(snapshot.scopes.indexOf(scope))})`;
  made.button.title = scope;
  const pages = Math.max(1, from.reduce((sum, one) => sum + one, 0));
  const warm = reused * (from[0] / pages);
  const numbers = [warm, reused - warm, Math.min(prompt, computed) - reused, prompt - Math.min(prompt, computed), known - prompt];
  numbers.forEach((tokens, at) => (made.bar.children[at].style.width = `${(100 * Math.max(0, tokens)) / longest}%`));
  const share = percent(reused, prompt);
  const text = computed < prompt ? `reading, ${share} reused` : `answer ${count(Math.max(0, known - prompt))}, ${share} reused`;
  if (made.what.textContent !== text) made.what.textContent = text;
  const label = `Request ${number}, ${scope}: ${count(reused)} of ${count(prompt)} prompt tokens reused from ${snapshot.tiers[0]} and slower memories, ` +
    `${count(Math.max(0, known - prompt))} tokens of answer. Show its receipt.`;
  made.button.setAttribute("aria-label", label);
}

function waitItem([number, tokens, found, seconds]) {
  const item = element("li");
  const told = found >= 0 ? `, ${count(found)} found` : "";
  item.append(element("b", "", `#${number}`), ` ${count(tokens)} tokens${told}${seconds ? `, ${seconds} s` : ""}`);
  return item;
}

// -- misses --------------------------------------------------------------------------------------------------------------

export function barOf(place, parts, whole) {
  place.replaceChildren(...parts.filter(([, number]) => number > 0).map(([name, number]) => {
    const part = element("i");
    part.style.width = `${(100 * number) / whole}%`;
    part.style.background = `var(${name})`;
    return part;
  }));
}

export function causeItem(name, words, number, whole, more) {
  const item = element("li");
  const mark = element("span", "key");
  mark.style.background = `var(${name})`;
  item.append(mark, element("b", "", words[0]), element("span", "n", `${percent(number, whole)}, ${short(number)}`));
  item.append(element("span", "why", more ? `${words[1]}; ${more}` : words[1]));
  return item;
}

export function showMisses(snapshot) {
  const { reuse } = snapshot;
  const found = Object.entries(reuse.missed).sort((one, other) => other[1] - one[1]);
  const colours = found.map((_, at) => CAUSE_COLOURS[Math.min(at, CAUSE_COLOURS.length - 1)]);
  byId("miss-bar").hidden = !reuse.tokens;
  if (!reuse.tokens) {
    const why = snapshot.receipts ? "No receipt has come yet. They come with finished requests, or by viewer.admitted(batch)." : "This cache keeps no receipts: build it with receipts=True to see causes.";
    byId("causes").replaceChildren(element("li", "empty", why));
    return;
  }
  barOf(byId("miss-bar"), [["--reused", reuse.reused], ...found.map(([, number], at) => [colours[at], number])], reuse.tokens);
  byId("miss-bar").setAttribute("aria-label", `${percent(reuse.reused, reuse.tokens)} reused, the rest by cause below`);
  byId("causes").replaceChildren(
    causeItem("--reused", ["Reused", "read from the cache"], reuse.reused, reuse.tokens),
    ...found.map(([cause, number], at) => causeItem(colours[at], CAUSES[cause] ?? [cause, ""], number, reuse.tokens)),
  );
}

// -- steps ---------------------------------------------------------------------------------------------------------------

const STEP_COLOURS = { model: "--computed", step: "--computed", schedule: "--claimed", moves: "--reused", pack: "--s7", advance: "--answer" };
const STEP_WORDS = { model: "the model computes", step: "a step", schedule: "who is next", moves: "pages move", pack: "the batch is built", advance: "tokens are chosen" };
let bars = [];

export function showSteps(snapshot, history) {
  const canvas = byId("step-chart");
  const steps = snapshot.steps;
  bars = steps.length
    ? steps.map(([, tokens, parts]) => ({ parts: Object.entries(parts), text: `${count(tokens)} tokens in ${Object.values(parts).reduce((a, b) => a + b, 0).toFixed(1)} ms` }))
    : activity(history);
  put("steps-title", steps.length ? "Steps" : "Activity");
  put("steps-say", steps.length ? "One bar is one step of the engine, the latest at the right: how long it took, and what for." : "Blocks of prompts per second, the latest at the right: those that were reused and those that were computed.");
  const parts = [...new Set(bars.flatMap((bar) => bar.parts.map(([name]) => name)))];
  byId("step-legend").replaceChildren(...parts.map((name) => legendItem(STEP_COLOURS[name] ?? (name === "reused" ? "--reused" : "--computed"), STEP_WORDS[name] ?? name)));
  drawBars(canvas);
  const tokens = steps.reduce((sum, [, number]) => sum + number, 0);
  const seconds = steps.length > 1 ? steps.at(-1)[0] - steps[0][0] : 0;
  put("step-note", seconds > 0 ? `${count(tokens / steps.length)} tokens a step, ${rate(steps.length / seconds)} steps a second` : steps.length || bars.length ? "" : "No step was reported yet.");
  canvas.setAttribute("aria-label", `${many(bars.length, "bar", "bars")}. ${byId("step-note").textContent}`);
}

function activity(history) {
  const recent = history.slice(-120);
  const [reused, missed] = [rates(recent, "reused_full", "reused_partial"), rates(recent, "missed")];
  return reused.map((one, at) => ({ parts: [["reused", one], ["computed", missed[at]]], text: `${rate(one)} reused, ${rate(missed[at])} computed a second` }));
}

function drawBars(canvas) {
  const [pen, wide, high] = ready(canvas);
  const totals = bars.map((bar) => bar.parts.reduce((sum, [, number]) => sum + number, 0));
  const sorted = [...totals].sort((one, other) => one - other);
  const top = Math.max(1e-6, 1.15 * (sorted[Math.floor(sorted.length * 0.97)] ?? 1));
  const step = wide / Math.max(60, bars.length);
  const first = wide - step * bars.length;
  pen.fillStyle = colour("--well");
  pen.fillRect(0, 0, wide, high);
  bars.forEach((bar, at) => {
    let foot = high;
    for (const [name, number] of bar.parts) {
      const tall = Math.min(foot, (number / top) * high);
      pen.fillStyle = colour(STEP_COLOURS[name] ?? (name === "reused" ? "--reused" : "--computed"));
      pen.fillRect(first + at * step, foot - tall, Math.max(1, step - (step > 3 ? 1 : 0.25)), tall);
      foot -= tall;
    }
  });
  pen.fillStyle = colour("--soft");
  pen.font = "11px system-ui, sans-serif";
  if (Math.max(0, ...totals) > 0) pen.fillText(byId("steps-title").textContent === "Steps" ? `${top.toFixed(top < 10 ? 1 : 0)} ms` : `${rate(top)} blocks/s`, 6, 14);
}

function barAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const step = box.width / Math.max(60, bars.length);
  return Math.floor((event.clientX - box.left - (box.width - step * bars.length)) / step);
}

export function listenToSteps() {
  const canvas = byId("step-chart");
  const tell = (event) => {
    const bar = bars[barAt(canvas, event)];
    if (bar) showTip(bar.text, event.clientX, event.clientY);
    else hideTip();
  };
  canvas.addEventListener("pointermove", tell);
  canvas.addEventListener("pointerleave", hideTip);
}
