"""Why prompt tokens were computed, and what would help; and whether the trace was too much for the modelled engine.

Words from a ReplayResult as JSON. Knows no markup.
"""

from __future__ import annotations

from quire.simulate.show.number_format import Json, count_text, share_text, shares_text

SOME = 0.05  # of the prompt tokens: worth a word of its own
CLOSE = 0.0005  # a share that is printed the same
LIGHT_LOAD = 0.9  # of what the modelled engine can do

NAMES = {
    "new": "new text",
    "interrupted": "interrupted (here before, behind other text)",
    "evicted": "evicted before",
    "forgotten": "gone long before",
    "failed": "lost",
    "window": "window pages gone",
    "snapshot": "no snapshot to resume at",
    "other_scope": "known in another scope only",
    "under_way": "being computed by another request",
    "slow": "on the slow tier, not here in time",
    "short": "in no whole block",
    "policy": "not to be reused",
    "last_token": "last tokens, always computed",
}
_GONE = ("evicted", "forgotten")


def reasons(result: Json) -> list[str]:
    """One sentence with all causes, then one for each that can be helped; nothing where none were looked for."""
    misses, prompt = result.get("misses") or {}, result.get("prompt_tokens") or 0
    causes = misses.get("causes") or {}
    if not causes or not prompt:
        return []
    shares = {cause: count / prompt for cause, count in causes.items()}
    whole, others = sum(shares.values()), 1 - float(result.get("hit_rate") or 0.0)
    texts = shares_text([*shares.values(), max(0.0, 1 - whole)], 1.0)[:-1]
    if abs(whole - others) < CLOSE:  # the rest is what was reused, and is printed rounded
        texts = shares_text(list(shares.values()), 1 - float(share_text(1 - others)[:-2]) / 100)
    parts = ", ".join(f"{NAMES[cause]} {text}" for cause, text in zip(shares, texts, strict=True) if text != "0.0 %")
    lines = [f"Why the others were computed, of all prompt tokens: {parts}."]
    gone = sum(shares.get(cause, 0.0) for cause in _GONE)
    advice = [_repeated(misses, prompt), _scopes(result, shares), _states(result, shares), _windows(shares)]
    advice += [_memory(result, gone), _slow(shares)]
    return lines + [line for line in advice if line]


def _repeated(misses: Json, prompt: int) -> str:
    share, at = (misses["causes"].get("interrupted") or 0) / prompt, misses.get("interrupted_at")
    if share < SOME or not at:
        return ""
    same = at["requests"] / max(at["of"], 1)
    where = (
        f" ({share_text(same, 0)} of the requests part near token {count_text(at['token'])}, most often equal again at "
        f"token {count_text(at['again'])})"
        if same >= SOME
        else ""
    )
    marked = misses.get("marked_interrupted")
    least = "At least " if marked else ""  # of what was forgotten by then there is no mark
    by = " The trace's marks say so." if marked else ""
    return (
        f"{least}{share_text(share)} stood in earlier prompts word for word, behind something that differs{where}: "
        f"a time, a date or an id, or pieces in another order? Put what changes behind what stays the same.{by} "
        "`quire findings` says more of a log."
    )


def _gain(result: Json, share: float) -> str:
    """What it brings if all of it were reused."""
    rate = float(result.get("hit_rate") or 0.0)
    return f"hit rate {share_text(rate)} -> {share_text(rate + share)} at most"


def _scopes(result: Json, shares: dict[str, float]) -> str:
    share = shares.get("other_scope", 0.0)
    if share < SOME:
        return ""
    return (
        f"{share_text(share)} are known in another scope: a salt per request, or a LoRA or epoch that need not differ? "
        f"Use one salt for all requests that may share: {_gain(result, share)}."
    )


def _states(result: Json, shares: dict[str, float]) -> str:
    share = shares.get("snapshot", 0.0)
    if share < SOME:
        return ""
    lowest = " No prompt could resume anywhere." if not result.get("tokens_saved") else ""
    return (
        f"{share_text(share)} are known text without a snapshot of the recurrent state at or behind it.{lowest} Take "
        "snapshots more often (snapshot_every) and at the prompt's end, and give that group memory for them (share): "
        f"{_gain(result, share)}."
    )


def _windows(shares: dict[str, float]) -> str:
    share = shares.get("window", 0.0)
    if share < SOME:
        return ""
    return (
        f"{share_text(share)} are known text whose window pages are gone: a follow-up resumes only where all of a "
        "window is there. Give that group more memory (share)."
    )


def _memory(result: Json, share: float) -> str:
    if share < SOME:
        return ""
    room, served = (result.get("load") or {}).get("memory_tokens") or 0, max(result.get("requests") or 0, 1)
    mean = (result.get("prompt_tokens") or 0) / served
    groups = [name for name in (result["misses"].get("groups") or {}) if name.startswith(("evicted", "forgotten"))]
    which = (
        f" (group {groups[0].partition(', ')[2]})" if groups and len(result.get("hit_rate_by_group") or {}) > 1 else ""
    )
    line = (
        f"{share_text(share)} had been here and made room{which}: `quire sweep` shows what more memory brings "
        f"({_gain(result, share)})."
    )
    if room < 2 * mean:
        line += (
            f" All tiers hold {count_text(room)} tokens, a prompt has {count_text(round(mean))} in the mean: the pool "
            "is too small to keep one conversation while another runs."
        )
    return line


def _slow(shares: dict[str, float]) -> str:
    share = shares.get("slow", 0.0)
    if share < SOME:
        return ""
    late = f"{share_text(share)} lay on the slow tier and were not here in time"
    return f"{late}: a faster one, or a longer --prefetch-wait."


def overload(result: Json) -> str:
    """A warning, when more arrives than the modelled engine can do; else nothing."""
    load = result.get("load") or {}
    share = load.get("load")
    if share is None or share <= 1.0:
        return ""
    slower = LIGHT_LOAD / share * float((result.get("settings") or {}).get("speed", 1.0))
    return (
        f"Overload: {count_text(round(load['offered_tokens_per_second']))} prompt tokens arrive each second, and the "
        f"modelled engine gets {count_text(round(load['capacity_tokens_per_second']))} done: {share:.1f} times too "
        "much. Requests wait longer and longer, so its times are those of a queue, not of an engine. Let them arrive "
        f"slower (--speed {slower:.2g}), give the rates of a faster engine (--prefill-rate, --decode-ms), or share the "
        f"trace between {int(share / LIGHT_LOAD) + 1} workers."
    )


def explained(result: Json) -> list[str]:
    """The receipt that was asked for."""
    receipt = (result.get("misses") or {}).get("explained")
    if not receipt:
        return []
    return [f"Line {receipt['line']}, admitted at {receipt['seconds']:,} s:", *receipt["text"].split("\n")]
