// Tree: cached prefixes as an icicle, and the largest shared ones as a table. Draws; decides nothing.

import { colour, element, hideTip, mix, ready, say, showTip } from "./draw.js";
import { scopeColour } from "./maps.js";
import { count, many, short } from "./words.js";

const byId = (id) => document.getElementById(id);

let pieces = [];
let piece = -1;
const [PARENT, SCOPE, TOKENS, DEPTH, BLOCKS, ENDS, HOLDERS, USES, WHO] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

export function showPrefixes(snapshot) {
  const { prefixes } = snapshot;
  layOut(prefixes, snapshot);
  drawTree();
  const shared = prefixes.map((row, at) => [row, at]).filter(([row]) => row[PARENT] >= 0 && row[ENDS] > 1)
    .sort(([one], [other]) => other[TOKENS] * (other[ENDS] - 1) - one[TOKENS] * (one[ENDS] - 1)).slice(0, 8);
  const counted = shared.some(([row]) => row[USES] >= 0);
  byId("uses-head").hidden = !counted;
  byId("shared").hidden = !shared.length;
  byId("shared").tBodies[0].replaceChildren(...shared.map(([row, at]) => tableRow(row, at, snapshot, counted)));
  byId("no-shared").textContent = (shared.length ? "" : prefixes.length ? "Nothing is shared yet: every cached text begins in its own way." : "Nothing is cached yet.");
  byId("tree").hidden = !prefixes.length;
  byId("tree").setAttribute("aria-label", `Tree of cached prefixes: ${many(snapshot.blocks, "block", "blocks")} in ${many(snapshot.num_scopes, "scope", "scopes")}; the largest are in the table below`);
}

function tableRow(row, at, snapshot, counted) {
  const made = element("tr");
  const chip = element("span", "chip");
  const mark = element("span", "key");
  mark.style.background = `var(${scopeColour(snapshot.scopes.indexOf(row[SCOPE]))})`;
  chip.append(mark, `${row[SCOPE]}, tokens ${count(row[DEPTH] - row[TOKENS])} to ${count(row[DEPTH])}`);
  const first = element("td");
  first.append(chip);
  made.append(first, element("td", "n", count(row[TOKENS])), element("td", "n", count(row[ENDS])), element("td", "n", short(row[TOKENS] * (row[ENDS] - 1))));
  if (counted) made.append(element("td", "n", row[USES] >= 255 ? "255+" : many(row[USES], "time", "times")));
  made.append(element("td", "", row[HOLDERS] ? holders(row) : "no request"));
  return made;
}

function holders(row) {
  const named = row[WHO].map((number) => `#${number}`);
  const more = row[HOLDERS] - named.length;
  return named.length ? named.join(" ") + (more > 0 ? ` and ${count(more)} more` : "") : many(row[HOLDERS], "request", "requests");
}

// Icicle: a piece is as wide as its share of its parent's blocks; children from the left, the largest first.
function layOut(prefixes, snapshot) {
  const whole = Math.max(1, prefixes.filter((row) => row[PARENT] < 0).reduce((sum, row) => sum + row[BLOCKS], 0));
  const next = new Map();
  pieces = [];
  prefixes.forEach((row, at) => {
    const above = row[PARENT] < 0 ? null : pieces[row[PARENT]];
    const left = next.get(row[PARENT]) ?? (above ? above.left : 0);
    const share = row[BLOCKS] / whole;
    next.set(row[PARENT], left + share);
    const nth = snapshot.scopes.indexOf(row[SCOPE]);
    pieces.push({ row, left, share, level: above ? above.level + 1 : 0, colour: scopeColour(nth), at });
  });
}

function drawTree() {
  const canvas = byId("tree");
  if (canvas.hidden) return;
  const [pen, wide, high] = ready(canvas);
  const levels = Math.max(3, Math.min(9, 1 + Math.max(0, ...pieces.map((one) => one.level))));
  const tall = high / levels;
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const one of pieces) {
    const [x, y, w] = [one.left * wide, one.level * tall, one.share * wide];
    one.box = [x, y, w, tall];
    if (w < 1 || one.level >= levels) continue;
    const live = one.row[HOLDERS] > 0 || one.level === 0;
    pen.fillStyle = live ? colour(one.colour) : mix("--card", one.colour, 0.38);
    pen.fillRect(x, y, Math.max(0.75, w - 1), tall - 1);
    const label = one.level === 0 ? one.row[SCOPE] : `${short(one.row[TOKENS])} tokens${one.row[ENDS] > 1 ? `, in ${count(one.row[ENDS])} texts` : ""}`;
    if (w > 56) {
      pen.save();
      pen.beginPath();
      pen.rect(x, y, w - 8, tall);
      pen.clip();
      pen.fillStyle = inkOn(live ? one.colour : null);
      pen.fillText(label, x + 7, y + tall / 2);
      pen.restore();
    }
  }
  if (piece >= 0 && pieces[piece]?.box) {
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    const [x, y, w, h] = pieces[piece].box;
    pen.strokeRect(x + 1, y + 1, Math.max(2, w - 3), h - 3);
  }
}

// Black or white, whatever can be read on a colour.
function inkOn(name) {
  if (!name) return colour("--ink");
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16) / 255).map((one) => (one <= 0.04 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.22 ? "#10131a" : "#ffffff";
}

function describePiece(one) {
  const { row } = one;
  const lines = one.level === 0 ? [row[SCOPE], "everything cached in this scope"] : [`${row[SCOPE]}: tokens ${count(row[DEPTH] - row[TOKENS])} to ${count(row[DEPTH])}`];
  lines.push(`${many(row[BLOCKS], "block", "blocks")} here and below`);
  lines.push(row[ENDS] > 1 ? `shared by ${count(row[ENDS])} texts` : "one text goes on here");
  if (row[USES] > 0) lines.push(`used ${row[USES] >= 255 ? "255 times or more" : many(row[USES], "time", "times")}`);
  lines.push(row[HOLDERS] || row[WHO].length ? `used now by ${row[HOLDERS] ? holders(row) : row[WHO].map((one_) => `#${one_}`).join(" ")}` : "not in use now");
  return lines.join("\n");
}

export function listenToTree() {
  const canvas = byId("tree");
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const found = pieces.find((one) => one.box && x >= one.box[0] && x < one.box[0] + one.box[2] && y >= one.box[1] && y < one.box[1] + one.box[3]);
    if (found) showTip(describePiece(found), event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", () => choosePiece(-1));
  canvas.addEventListener("keydown", (event) => {
    const here = pieces[piece];
    const level = (number) => pieces.filter((one) => one.level === number).sort((one, other) => one.left - other.left);
    const beside = (by) => {
      const row = level(here.level);
      return row[Math.max(0, Math.min(row.length - 1, row.indexOf(here) + by))]?.at ?? piece;
    };
    let next;
    if (event.key === "Escape") next = -1;
    else if (!here && event.key.startsWith("Arrow")) next = 0;
    else if (event.key === "ArrowRight") next = beside(1);
    else if (event.key === "ArrowLeft") next = beside(-1);
    else if (event.key === "ArrowUp") next = here.row[PARENT] >= 0 ? here.row[PARENT] : piece;
    else if (event.key === "ArrowDown") next = pieces.find((one) => one.row[PARENT] === piece)?.at ?? piece;
    else return;
    event.preventDefault();
    choosePiece(next);
  });
}

function choosePiece(at) {
  piece = pieces[at] ? at : -1;
  drawTree();
  if (piece < 0) {
    hideTip();
    return;
  }
  const box = byId("tree").getBoundingClientRect();
  const one = pieces[piece];
  const text = describePiece(one);
  if (one.box) showTip(text, box.left + one.box[0], box.top + one.box[1]);
  say(text.replaceAll("\n", "; "));
}
