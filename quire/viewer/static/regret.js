// Regret: the last hour of the cache beside what other memory or another order would have hit. Shows; computes nothing.

import { element } from "./draw.js";
import { many } from "./words.js";

const byId = (id) => document.getElementById(id);
const share = (value) => `${(100 * value).toFixed(1)} %`;
const GAIN = 0.0005; // of the prompt tokens: less is no gain

function row(name, value, why) {
  const item = element("li");
  item.append(element("span"), element("b", "", name), element("span", "n", value), element("span", "why", why));
  return item;
}

export function showRegret({ regret }) {
  const known = regret && regret.requests > 0;
  byId("regret").hidden = !known;
  if (!known) return;
  const minutes = Math.max(1, Math.round(regret.seconds / 60));
  const sampled = regret.one_in > 1 ? `, from one block in ${regret.one_in}` : "";
  byId("regret-say").textContent = `Of all prompt tokens of the last ${many(minutes, "minute", "minutes")}, in whole blocks${sampled}. Counted anew every minute.`;
  const orders = Object.entries(regret.orders).filter(([name]) => name !== regret.eviction);
  const gains = regret.tiers.filter((tier) => tier.per_gb !== null);
  byId("regret-rows").replaceChildren(
    row("Hit", share(regret.hit_rate), "what this cache has reused"),
    ...orders.map(([name, rate]) => row(`${name} order`, share(rate), "another eviction order, in the same memory")),
    ...(regret.optimum === null ? [] : [row("At best", share(regret.optimum), "the same memory, had it known what comes")]),
    row("No limit", share(regret.ceiling), "if nothing were ever forgotten"),
    ...gains.map((tier) => row(`1 GB more ${tier.name}`, tier.per_gb < GAIN ? "no gain" : `+${(100 * tier.per_gb).toFixed(1)} points`, tier === gains.at(-1) ? "not computed any more" : "not brought up any more")),
  );
}
