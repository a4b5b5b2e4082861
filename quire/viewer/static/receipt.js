// Receipt: one request in a dialog: what was reused, and why the rest was not. Text is set as text, never as markup.

import { element } from "./draw.js";
import { barOf, causeItem } from "./panels.js";
import { CAUSE_COLOURS, CAUSES, count, percent } from "./words.js";

const dialog = document.getElementById("receipt");
const body = document.getElementById("receipt-body");
document.getElementById("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // the backdrop
});

export async function openReceipt(number, ask) {
  document.getElementById("receipt-title").textContent = `Request #${number}`;
  body.replaceChildren(element("p", "soft", "asking"));
  if (!dialog.open) dialog.showModal();
  const reply = await ask(`/viewer/receipt?request=${number}`).catch(() => null);
  if (reply === null || !reply.ok) {
    body.replaceChildren(element("p", "soft", reply?.status === 404 ? "This request is over." : "The server did not answer."));
    return;
  }
  show(await reply.json());
}

function show(told) {
  const parts = [];
  const { receipt } = told;
  if (told.id) parts.push(element("p", "soft", `known to the engine as ${told.id}`));
  if (receipt) parts.push(...receiptParts(receipt));
  else parts.push(element("p", "empty", "There is no receipt of it: it is still waiting, or this cache keeps none (receipts=True)."));
  if (told.tokens) {
    const more = told.num_tokens > told.tokens.length ? `, the first ${count(told.tokens.length)} of ${count(told.num_tokens)} tokens` : "";
    parts.push(element("h3", "", `Prompt${more}`), element("div", "prompt", told.text ?? told.tokens.join(" ")));
  }
  if (!told.operator) parts.push(element("p", "note", "This is what the sender of the prompt may know. With a key for this page, the operator also sees from which memory it came, when pages were evicted, and what would have helped."));
  body.replaceChildren(...parts);
}

function receiptParts(receipt) {
  const { length, reused, misses, hits } = receipt;
  const causes = [...new Set(misses.map((miss) => miss.cause))];
  const name = (cause) => CAUSE_COLOURS[Math.min(causes.indexOf(cause), CAUSE_COLOURS.length - 1)];
  const bar = element("div", "bar tall");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `${count(reused)} of ${count(length)} tokens reused`);
  barOf(bar, [["--reused", reused], ...misses.map((miss) => [name(miss.cause), miss.stop - miss.start])], length);
  const list = element("ul", "causes");
  list.append(causeItem("--reused", ["Reused", hits.length ? hits.map((hit) => `${count(hit.tokens)} tokens from ${hit.tier}, ${hit.group}`).join("; ") : "read from the cache"], reused, length));
  for (const miss of misses) {
    const facts = [`tokens ${count(miss.start)} to ${count(miss.stop)}`];
    if (miss.gap) facts.push(`equal again after ${count(miss.gap)} others`);
    if (miss.seconds !== undefined) facts.push(`${miss.seconds} s ago`);
    if (miss.request) facts.push(`by request #${miss.request}`);
    if (miss.scope) facts.push(`in ${miss.scope}`);
    if (miss.group) facts.push(`layers: ${miss.group}`);
    if (miss.cure) facts.push(`would have helped: ${miss.cure}`);
    list.append(causeItem(name(miss.cause), CAUSES[miss.cause] ?? [miss.cause, ""], miss.stop - miss.start, length, facts.join("; ")));
  }
  return [element("p", "", `${count(reused)} of ${count(length)} prompt tokens were reused: ${percent(reused, length)}.`), bar, list];
}
