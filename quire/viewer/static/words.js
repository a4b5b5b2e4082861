// Words: every sentence of the page that depends on what there is. Knows no element.

export const STATES = [
  // by number: colour, name, what it means
  ["empty", "free", "nothing in it"],
  ["open", "being written", "a request fills it now"],
  ["held", "in use", "a running request reads it"],
  ["claimed", "promised", "kept for a request that starts next"],
  ["idle", "cached", "not in use; the next prompt that begins alike reuses it"],
  ["shadow", "second copy", "the page also lies in a faster memory"],
  ["coming", "arriving", "being copied in the background"],
];

export const CAUSES = {
  new: ["New text", "no earlier prompt begins with it"],
  interrupted: ["Sent before, behind something else", "equal again after a few other tokens: a time or an id in front of it?"],
  evicted: ["Was here, made room", "its pages were given to others: more memory would have kept it"],
  gone: ["Was here, and is gone", "its pages were given to others, or lost"],
  forgotten: ["Was here long ago", "so long that nothing more is known of it"],
  under_way: ["Being computed by another request", "a moment later it would have been reused"],
  short: ["Part of a block", "whole blocks are shared, and this was less than one"],
  last_token: ["The last token", "always computed: the answer begins with it"],
  policy: ["Not to be reused", "the request, or this server, asked for that; or it is the last token"],
  window: ["Window pages gone", "layers that read only the last tokens had let go of them"],
  snapshot: ["No snapshot to resume at", "a recurrent state is kept at some places only"],
  failed: ["A copy failed", "its bytes did not arrive"],
  slow: ["On disk only", "it was not brought up in time"],
  other_scope: ["In another scope", "another tenant or adapter has it, and they share nothing"],
};
export const CAUSE_COLOURS = ["--s1", "--s2", "--s4", "--s5", "--s6", "--s7", "--s0"];

export const TIER_WORDS = [
  "the fastest: a model reads pages here and nowhere else",
  "slower and larger: pages wait here, and come up again when a prompt needs them",
  "slowest and largest: pages outlive a restart here",
];

export const KINDS = {
  full: "layers that read every earlier token",
  window: "layers that read the last tokens only",
  state: "recurrent layers: snapshots of their state",
  cross: "layers that read what an encoder has read",
};

const whole = new Intl.NumberFormat("en");
export const count = (number) => whole.format(Math.round(number));
export const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more}`;

export function short(number) {
  if (number < 10_000) return count(number);
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${(number / size).toFixed(number / size < 100 ? 1 : 0)}${unit}`;
  }
  return count(number);
}

export function percent(part, whole_) {
  if (!whole_) return "–";
  const share = (100 * part) / whole_;
  return part > 0 && share < 0.5 ? "under 1 %" : `${Math.round(share)} %`;
}

export function rate(perSecond) {
  return perSecond >= 10 || perSecond === 0 ? count(perSecond) : perSecond.toFixed(1);
}

export function bytes(number) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (number >= size) return `${(number / size).toFixed(number / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${count(number)} bytes`;
}

export function headline(reuse, requests, used) {
  if (reuse.tokens > 0) {
    const share = Math.round((100 * reuse.reused) / reuse.tokens);
    return `${share} % of all prompt tokens were already in memory.`;
  }
  if (requests.running + requests.waiting > 0) return `${many(requests.running, "request is", "requests are")} being answered.`;
  return used > 0 ? "The cache remembers, and no request is running." : "The cache is empty. Send a prompt and watch it fill.";
}
