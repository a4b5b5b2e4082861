// Maps: every pool as a field of cells, tier by tier, with what moves between them. Draws; decides nothing.

import { calm, colour, element, forgetColours, hideTip, mix, ready, say, showTip, upAndDown } from "./draw.js";
import { bytes, count, KINDS, many, rate, STATES, TIER_WORDS } from "./words.js";

const SIZES = [16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3];
const FLASH = 700; // milliseconds that a change is seen
export const COLOURS = [["state", "State"], ["age", "Age"], ["uses", "Uses"], ["scope", "Scope"]];
const pools = new Map(); // "tier,group" -> what is drawn
const unpack = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
let shape = "";

export function showMaps(snapshot, flows) {
  const wanted = JSON.stringify([snapshot.tiers, snapshot.pools.map((pool) => [pool.tier, pool.group, pool.slots])]);
  if (wanted !== shape) build(snapshot);
  shape = wanted;
  for (const pool of snapshot.pools) update(pools.get(`${pool.tier},${pool.group}`), pool, snapshot);
  showFlows(snapshot, flows);
}

export function redrawMaps() {
  forgetColours();
  for (const one of pools.values()) draw(one);
}

function build(snapshot) {
  const place = document.getElementById("tiers");
  place.replaceChildren();
  pools.clear();
  snapshot.tiers.forEach((name, tier) => {
    const section = element("section", "tier");
    const head = element("div", "tier-head");
    head.append(element("h3", "", name), element("p", "", TIER_WORDS[Math.min(tier, TIER_WORDS.length - 1)]));
    const row = element("div", "pools");
    const own = snapshot.pools.filter((pool) => pool.tier === tier);
    for (const pool of own) row.append(buildPool(pool, snapshot));
    if (tier > 0) place.append(buildFlow(tier));
    section.append(head, row);
    place.append(section);
  });
}

// A group is equally wide in all tiers, so that its maps stand below each other.
function share(group, snapshot) {
  const first = snapshot.pools.filter((pool) => pool.tier === 0);
  const slots = first.find((pool) => pool.group === group)?.slots ?? 1;
  return Math.max(1, Math.sqrt(slots / Math.min(...first.map((pool) => pool.slots))));
}

function nameOf(pool, snapshot) {
  return pool.groups.map((group) => snapshot.groups[group].name).join(", ");
}

function buildPool(pool, snapshot) {
  const group = snapshot.groups[pool.group];
  const box = element("div", "pool");
  box.style.flexGrow = String(share(pool.group, snapshot));
  const head = element("div", "pool-head");
  const name = element("span");
  const sharing = pool.groups.length > 1;
  name.append(element("b", "", nameOf(pool, snapshot)), sharing ? " share one pool" : ` ${KINDS[group.kind]}`);
  const numbers = element("span");
  head.append(name, numbers);
  const canvas = element("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  box.append(head, canvas);
  const one = { canvas, numbers, at: -1, changed: new Map(), states: null };
  pools.set(`${pool.tier},${pool.group}`, one);
  listen(one);
  return box;
}

function buildFlow(tier) {
  const flow = element("div", "flow");
  flow.id = `flow-${tier}`;
  for (const kind of ["up", "down", "gone"]) {
    const part = element("span", kind);
    part.append(element("b"), element("span"));
    flow.append(part);
  }
  const canvas = element("canvas");
  canvas.setAttribute("aria-hidden", "true");
  flow.append(canvas);
  return flow;
}

function update(one, pool, snapshot) {
  const states = unpack(pool.states);
  const now = performance.now();
  if (one.states && one.states.length === states.length && !calm()) {
    for (let at = 0; at < states.length; at += 1) if (states[at] !== one.states[at]) one.changed.set(at, now);
  }
  Object.assign(one, { states, shades: unpack(pool.shades), pool, snapshot });
  const [empty, open, held, claimed, idle, shadow, coming] = pool.counts;
  const group = snapshot.groups[pool.group];
  const size = group.page_bytes ? `, ${bytes(group.page_bytes * pool.slots)}` : "";
  one.numbers.textContent = `${many(pool.slots, "page", "pages")}${size}, ${empty ? count(empty) : "none"} free`;
  const inUse = open + held + coming;
  one.canvas.setAttribute(
    "aria-label",
    `${snapshot.tiers[pool.tier]}, ${nameOf(pool, snapshot)}: ${many(pool.slots, "page", "pages")}; ${count(inUse)} in use, ` +
      `${count(claimed)} promised, ${count(idle + shadow)} cached, ${count(empty)} free`,
  );
  draw(one);
}

function draw(one) {
  if (!one.states) return;
  const wide = Math.floor(one.canvas.getBoundingClientRect().width);
  if (wide < 8) return;
  const limit = one.pool.tier === 0 ? 320 : 240;
  const fits = (size) => Math.ceil(one.states.length / Math.floor(wide / size)) * size <= limit;
  one.size = SIZES.find(fits) ?? SIZES[SIZES.length - 1];
  one.columns = Math.max(1, Math.min(one.states.length, Math.floor(wide / one.size)));
  const [pen] = ready(one.canvas, Math.ceil(one.states.length / one.columns) * one.size);
  paint(pen, one, performance.now());
  if (one.changed.size && !one.drawing) {
    one.drawing = true;
    requestAnimationFrame(() => fade(one));
  }
}

function fade(one) {
  const now = performance.now();
  const scale = one.canvas.width / one.canvas.getBoundingClientRect().width;
  const pen = one.canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  for (const at of one.changed.keys()) {
    if (at < one.states.length) paintCell(pen, one, at, now);
    if (now - one.changed.get(at) > FLASH) one.changed.delete(at);
  }
  if (one.changed.size) requestAnimationFrame(() => fade(one));
  else one.drawing = false;
}

function paint(pen, one, now) {
  for (let at = 0; at < one.states.length; at += 1) paintCell(pen, one, at, now);
  if (one.at >= 0) {
    const [x, y] = cellPlace(one, one.at);
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(x - 0.5, y - 0.5, one.size, one.size);
  }
}

function cellPlace(one, at) {
  return [(at % one.columns) * one.size, Math.floor(at / one.columns) * one.size];
}

function paintCell(pen, one, at, now) {
  const [x, y] = cellPlace(one, at);
  const gap = one.size >= 8 ? 2 : one.size >= 5 ? 1 : 0.5;
  const side = one.size - gap;
  pen.clearRect(x, y, one.size, one.size);
  pen.fillStyle = fill(one, at);
  square(pen, x, y, side);
  const since = one.changed.has(at) ? now - one.changed.get(at) : FLASH;
  if (since < FLASH) {
    pen.globalAlpha = 0.75 * (1 - since / FLASH);
    pen.fillStyle = colour("--glow");
    square(pen, x, y, side);
    pen.globalAlpha = 1;
  }
}

function square(pen, x, y, side) {
  if (side >= 7 && pen.roundRect) {
    pen.beginPath();
    pen.roundRect(x, y, side, side, side / 4);
    pen.fill();
  } else pen.fillRect(x, y, side, side);
}

function fill(one, at) {
  const [state, shade] = [one.states[at], one.shades[at]];
  if (state === 0) return colour("--empty");
  const name = `--${STATES[state][0]}`;
  switch (one.snapshot.colour) {
    case "age":
      if (shade === 255) return colour("--quiet");
      return shade < 127 ? mix("--hot", "--warm", shade / 127) : mix("--warm", "--cool", (shade - 127) / 127);
    case "uses":
      return mix("--few", "--many", Math.min(1, Math.log2(1 + shade) / 6));
    case "scope":
      return colour(scopeColour(shade - 1));
    default:
      return shade > 250 ? colour(name) : mix("--empty", name, 0.35 + (0.65 * shade) / 255);
  }
}

export const scopeColour = (nth) => (nth >= 0 && nth < 7 ? `--s${nth + 1}` : "--s0");

function describe(one, at) {
  const { pool, snapshot } = one;
  const [first, last] = [at * pool.per_cell, Math.min(pool.slots, (at + 1) * pool.per_cell) - 1];
  const state = STATES[one.states[at]];
  const where = first === last ? `slot ${count(first)}` : `slots ${count(first)} to ${count(last)}, mostly`;
  const lines = [`${snapshot.tiers[pool.tier]}, ${where}`, `${state[1]}: ${state[2]}`];
  const shade = one.shades[at];
  if (one.states[at] !== 0 && snapshot.colour === "age") {
    lines.push(shade === 255 ? "cannot be evicted now" : `place in the order of eviction: ${Math.round(shade / 2.54)} of 100`);
  }
  if (one.states[at] !== 0 && snapshot.colour === "uses") {
    lines.push(snapshot.eviction === "adaptive" ? `used ${many(shade, "time", "times")}` : `held by ${many(shade, "request", "requests")}`);
  }
  if (one.states[at] !== 0 && snapshot.colour === "scope") lines.push(shade ? snapshot.scopes[shade - 1] : "a small scope, or none yet");
  return lines.join("\n");
}

function listen(one) {
  const { canvas } = one;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / one.size);
    const at = Math.floor((event.clientY - box.top) / one.size) * one.columns + column;
    const inside = column < one.columns && at < one.states.length;
    if (inside) showTip(describe(one, at), event.clientX, event.clientY);
    else hideTip();
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", () => choose(one, -1));
  canvas.addEventListener("keydown", (event) => {
    const last = one.states.length - 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: one.columns, ArrowUp: -one.columns };
    if (event.key in steps) choose(one, one.at < 0 ? 0 : Math.max(0, Math.min(last, one.at + steps[event.key])));
    else if (event.key === "Home") choose(one, 0);
    else if (event.key === "End") choose(one, last);
    else if (event.key === "Escape") choose(one, -1);
    else return;
    event.preventDefault();
  });
}

function choose(one, at) {
  one.at = at;
  draw(one);
  if (at < 0) {
    hideTip();
    return;
  }
  const box = one.canvas.getBoundingClientRect();
  const [x, y] = cellPlace(one, at);
  const text = describe(one, at);
  showTip(text, box.left + x, box.top + y);
  say(text.replaceAll("\n", "; "));
}

function showFlows(snapshot, flows) {
  for (let tier = 1; tier < snapshot.tiers.length; tier += 1) {
    const flow = document.getElementById(`flow-${tier}`);
    const [up, down, gone] = flow.children;
    const series = tier === 1 ? flows.first : flows.slow;
    const last = (values) => values.slice(-4).reduce((sum, one) => sum + one, 0) / Math.max(1, Math.min(4, values.length));
    const tell = (part, values, words) => {
      part.children[0].textContent = rate(last(values));
      part.children[1].textContent = words;
    };
    tell(up, series.up, `pages/s brought up to ${snapshot.tiers[tier - 1]}`);
    tell(down, series.down, `moved down to ${snapshot.tiers[tier]}`);
    gone.hidden = tier !== 1;
    tell(gone, flows.gone, "dropped");
    upAndDown(flow.lastChild, series.up, series.down, ["--reused", "--claimed"]);
  }
}

export function showLegend(snapshot) {
  const legend = document.getElementById("legend");
  const parts = [];
  const key = (name, word, note) => {
    const item = element("li");
    const mark = element("span", "key");
    mark.style.background = colour(name);
    item.append(mark, element("b", "", word));
    if (note) item.append(note);
    parts.push(item);
  };
  const ramp = (names, left, right) => {
    const item = element("li");
    const mark = element("span", "ramp");
    mark.style.background = `linear-gradient(90deg, ${names.map(colour).join(", ")})`;
    item.append(left, mark, right);
    parts.push(item);
  };
  if (snapshot.colour === "state") {
    const totals = STATES.map((_, state) => snapshot.pools.reduce((sum, pool) => sum + pool.counts[state], 0));
    for (const state of [2, 1, 3, 4, 5, 6, 0]) {
      const rare = state === 5 || state === 6;
      if (!rare || totals[state]) key(`--${STATES[state][0]}`, STATES[state][1], STATES[state][2]);
    }
  } else if (snapshot.colour === "age") {
    ramp(["--hot", "--warm", "--cool"], "evicted next", "kept longest");
    key("--quiet", "in use", "cannot be evicted");
  } else if (snapshot.colour === "uses") {
    const told = snapshot.eviction === "adaptive" ? ["used once", "used 64 times or more"] : ["held by no request", "held by many requests"];
    ramp(["--few", "--many"], told[0], told[1]);
  } else {
    snapshot.scopes.slice(0, 7).forEach((label, nth) => key(scopeColour(nth), label));
    if (snapshot.num_scopes > 7) key("--s0", `${count(snapshot.num_scopes - 7)} others`);
    if (!snapshot.scopes.length) parts.push(element("li", "", "nothing is cached yet"));
  }
  if (snapshot.colour !== "state") key("--empty", "free");
  const perCell = Math.max(1, ...snapshot.pools.map((pool) => pool.per_cell));
  document.getElementById("memory-say").textContent =
    (perCell === 1 ? "Each square is a page" : `Each square is a page, or up to ${perCell} of them where there are many`) +
    `: what the model remembers of ${snapshot.block} tokens. A page is reused when another prompt begins with the same tokens.`;
  legend.replaceChildren(...parts);
}
