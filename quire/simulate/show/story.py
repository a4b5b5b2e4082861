"""What a replay showed, in words and rows: for the page and the screen alike. Knows no markup.

Everything comes from the ReplayResult as JSON; what it does not have is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.simulate.show.causes import overload, reasons
from quire.simulate.show.number_format import (
    Json,
    bytes_text,
    count_text,
    share_text,
    shares_text,
    time_text,
    value_text,
)

Rows = list[tuple[str, str]]

MODELLED = "(modelled)"
RAN = "hit rate, requests that ran"
PHASES = ("two-phase", "one at a time")
NO_DIFFERENCE = "No difference."
_BROKEN = ("broken_promises", "worst_overshoot_tokens")
UNSHARED = (
    "The trace has lengths only: what its prompts have in common is not known, so the hit rate says nothing about "
    "reuse. Times, loads and memory are those of prompts that share nothing."
)

_FACTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("requests", "requests", count_text),
    ("refused", "requests refused", count_text),
    ("skipped_lines", "trace lines skipped", count_text),
    ("batches", "batches", count_text),
    ("broken_promises", "batches that broke their promise", count_text),
    ("worst_overshoot_tokens", "worst overshoot, tokens", count_text),
    ("hit_rate_of_trace", "hit rate, all prompt tokens of the trace", lambda share: share_text(share, 2)),
    ("hit_rate", "hit rate, prompt tokens", lambda share: share_text(share, 2)),
    ("block_hit_rate", "hit rate, whole blocks of the trace", lambda share: share_text(share, 2)),
    ("prompt_tokens", "prompt tokens of these requests", count_text),
    ("tokens_saved", "prompt tokens not computed", count_text),
    ("tokens_computed", "prompt tokens computed", count_text),
    ("compute_cost_mean", "cost of computing a prompt, in tokens at the start of one", count_text),
    ("lost_reuse_tokens", "tokens counted on and lost before admission", count_text),
    ("evictions", "evictions", count_text),
    ("dropped", "pages lost with their last copy", count_text),
    ("onboarded_bytes", "bytes onboarded", bytes_text),
    ("offloaded_bytes", "bytes offloaded", bytes_text),
    ("preemptions", "preemptions", count_text),
    ("recomputed_tokens", "tokens computed again after preemption", count_text),
    ("requests_per_second", "requests per second inside cache calls", count_text),
    ("wall_requests_per_second", "requests per second, wall", count_text),
    ("wall_seconds", "wall time", time_text),
)


def facts(result: Json) -> Rows:
    """What was counted and measured."""
    rows: Rows = []
    for key, name, say in _FACTS:
        if key == "hit_rate_of_trace" and not result.get("refused"):
            continue  # the same as the next one
        name = RAN if key == "hit_rate" and _some_refused(result) else name
        if result.get(key) is not None:
            rows.append((name, say(result[key])))
        for part, text in (_tier_texts(result, 2) if key == "hit_rate" else {}).items():
            rows.append((f"- from tier {part}", text))
        for part, share in (result.get(f"{key}_by_group") or {}).items():
            rows.append((f"- blocks, layer group {part}", share_text(share, 2)))
    return rows


def _tier_texts(result: Json, digits: int = 1) -> dict[str, str]:
    """Where the reused tokens came from; the numbers add up to the printed hit rate."""
    tiers = result.get("hit_rate_by_tier") or {}
    return dict(zip(tiers, shares_text(list(tiers.values()), result["hit_rate"], digits), strict=True))


def tiles(result: Json) -> list[tuple[str, str, str]]:
    """What a page shows large."""
    found = [("Hit rate", share_text(_rate(result)), "of the prompt tokens were reused"),
             ("Not computed", count_text(result["tokens_saved"]), "prompt tokens")]  # fmt: skip
    first = ((result.get("model") or {}).get("ttft_ms") or {}).get("p50")
    if first is not None and not overload(result):
        found.append(("First token", time_text(first / 1000), "median, modelled"))
    elif overload(result):
        found.append(("Load", share_text(result["load"]["load"], 0), "of what the modelled engine can do"))
    refused = f"{count_text(result['refused'])} refused" if result.get("refused") else "served"
    return [*found, ("Requests", count_text(result["requests"]), refused)]


def _rate(result: Json) -> float:
    """Of the whole trace: a request that was refused is missed."""
    return float(result["hit_rate_of_trace"] if _some_refused(result) else result["hit_rate"])


def _some_refused(result: Json) -> bool:
    """Whether the hit rate of the requests that ran is not that of the trace."""
    return bool(result.get("refused")) and result.get("hit_rate_of_trace") is not None


def modelled(result: Json) -> Rows:
    """What the time model says; never a measurement."""
    model = result.get("model") or {}
    rows: Rows = []
    for name, value in model.items():
        if name == "note":
            continue
        if name == "ttft_ms" and isinstance(value, dict):
            rows += [(f"time to first token, {part}", time_text(ms / 1000)) for part, ms in value.items()]
        elif name == "seconds":
            rows.append(("time on the virtual clock", time_text(value)))
        else:
            rows.append((name.replace("_", " "), value_text(value)))
    return rows


def note(result: Json) -> str:
    """What the model assumes, in its own words."""
    words = str((result.get("model") or {}).get("note") or "they come from a time model, not from a clock")
    return words[:1].upper() + words[1:].rstrip(".") + "."


def settings(result: Json) -> Rows:
    """The run's settings, in their own order."""
    rows: Rows = []
    for name, value in (result.get("settings") or {}).items():
        if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            rows += [_named(name, nth, part) for nth, part in enumerate(value)]
        else:
            rows.append((name.replace("_", " "), _setting(name, value)))
    return rows


def _named(name: str, nth: int, part: dict[str, object]) -> tuple[str, str]:
    """One of several, such as a tier: by its name where it has one."""
    rest = {key: value for key, value in part.items() if key != "name"}
    return f"{name.removesuffix('s')} {part.get('name', nth + 1)}", _setting(name, rest)


def _setting(name: str, value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (name == "memory" or "bytes" in name):
        return bytes_text(float(str(value)))
    if isinstance(value, dict):
        inside = {part: inner for part, inner in value.items() if inner is not None}
        return ", ".join(
            f"{part.replace('_', ' ')} {_setting(name if name == 'memory' else part, inner)}"
            for part, inner in inside.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(_setting(name, part) for part in value) or "none"
    return value_text(value)


def answer(result: Json) -> str:
    """The outcome in one sentence."""
    rate = _rate(result)
    tiers = {name: share for name, share in (result.get("hit_rate_by_tier") or {}).items() if share}
    sources = ", ".join(f"{text} from {name}" for name, text in _tier_texts(result).items() if name in tiers)
    sources = sources if len(tiers) > 1 and rate == result["hit_rate"] else ""
    first = ((result.get("model") or {}).get("ttft_ms") or {}).get("p50")
    soon = (
        "" if first is None or overload(result) else f"; half of the first tokens come within {time_text(first / 1000)}"
    )
    return f"{share_text(rate)} of the prompt tokens were reused{f' ({sources})' if sources else ''}{soon}."


def outcome(result: Json) -> list[str]:
    """The outcome in plain words."""
    lines = [f"{count_text(result['requests'])} requests were replayed."]
    rate = result["hit_rate"]
    sources = ", ".join(f"{name} {text}" for name, text in _tier_texts(result).items())
    if _some_refused(result):
        lines.append(
            f"{share_text(result['hit_rate_of_trace'])} of the trace's prompt tokens did not have to be computed; "
            f"the {count_text(result['refused'])} refused requests count as missed."
        )
    which = "the prompt tokens of those that ran" if _some_refused(result) else "the prompt tokens"
    lines.append(
        f"{share_text(rate)} of {which} did not have to be computed: "
        f"{count_text(result['tokens_saved'])} tokens" + (f" (by tier: {sources})." if sources else ".")
    )
    if result.get("settings", {}).get("trace_sharing") == "unknown":
        lines.append(UNSHARED)
    lines += reasons(result)
    lines.append(_promise(result))
    if hints := result.get("hints"):
        counts = ", ".join(f"{count_text(hints[name])} {name}" for name in ("soon", "later", "never") if name in hints)
        lines.append(f"Hints when requests ended: {counts or 'none'}; {count_text(hints.get('none', 0))} without.")
    if slow := result.get("slow_tier"):
        lines.append(_slow_tier(slow))
    up, down = result["onboarded_bytes"], result["offloaded_bytes"]
    if up or down:
        lines.append(f"{bytes_text(down)} were offloaded to colder tiers and {bytes_text(up)} came back.")
    if result.get("refused"):
        lines.append(f"{count_text(result['refused'])} requests were refused: they cannot fit.")
    if result.get("skipped_lines"):
        lines.append(f"{count_text(result['skipped_lines'])} lines of the trace were broken and skipped.")
    return lines


def _slow_tier(slow: Json) -> str:
    late, refused, behind = (slow[name] for name in ("prefetches_late", "prefetches_refused", "pages_behind"))
    more = [f"{count_text(late)} came too late"] if late else []
    more += [f"{count_text(refused)} found no room in the host"] if refused else []
    written, read = bytes_text(slow["written_bytes"]), bytes_text(slow["read_bytes"])
    took = time_text(slow["prefetch_wait_ms"] / 1000)
    return (
        f"{written} were written to the {slow['name']} and {read} read by {count_text(slow['prefetches'])} prefetches, "
        f"which took {took} in the mean{''.join(f', {part}' for part in more)}."
        + (f" Writing fell behind by {count_text(behind)} pages, which are lost." if behind else "")
    )


def _promise(result: Json) -> str:
    broken, batches = result["broken_promises"], result.get("batches")
    of = f" of {count_text(batches)}" if batches else ""
    if not broken:
        many = f"each of {count_text(batches)} batches" if batches else "every batch"
        return f"Every promise was kept: {many} computed no more tokens than its estimate said when it was chosen."
    worst = count_text(result["worst_overshoot_tokens"])
    return f"{count_text(broken)}{of} batches computed more tokens than promised; the worst by {worst} tokens."


def comparison(together: Json, one_by_one: Json) -> list[tuple[str, str, str]]:
    """Rows for two-phase beside one at a time; modelled numbers say so."""
    wanted = {"requests", "batches", "broken_promises", "worst_overshoot_tokens", "hit_rate_of_trace", "hit_rate",
              "tokens_saved", "tokens_computed", "lost_reuse_tokens", "evictions", "onboarded_bytes",
              "offloaded_bytes"}  # fmt: skip
    if not (_some_refused(together) or _some_refused(one_by_one)):
        wanted.remove("hit_rate_of_trace")  # the same as the next one
    rows = [
        (name, say(together[key]), say(one_by_one[key]))
        for key, name, say in _FACTS
        if key in wanted and together.get(key) is not None and one_by_one.get(key) is not None
    ]
    moved = [bytes_text(side["onboarded_bytes"] + side["offloaded_bytes"]) for side in (together, one_by_one)]
    rows.append(("bytes moved in all", moved[0], moved[1]))
    other = dict(modelled(one_by_one))
    rows += [(f"{name} {MODELLED}", value, other[name]) for name, value in modelled(together) if name in other]
    return rows


def gained(together: Json, one_by_one: Json) -> str:
    """The difference, in one sentence."""
    more = _computed(one_by_one) - _computed(together)
    if not more and all(together.get(name) == one_by_one.get(name) for name in _BROKEN):
        return NO_DIFFERENCE
    reuse = f"computed {count_text(abs(more))} {'fewer' if more > 0 else 'more'} prompt tokens"
    if not more:
        reuse = "computed as many prompt tokens"
    return f"Two-phase admission {_broke(together)}, one at a time {_broke(one_by_one)}. Two-phase {reuse}."


def _broke(result: Json) -> str:
    count = result["broken_promises"]
    if not count:
        return "broke no promise"
    worst = f"worst by {count_text(result['worst_overshoot_tokens'])} tokens"
    return f"broke {count_text(count)} promise{'s' if count > 1 else ''} ({worst})"


def _computed(result: Json) -> int:
    """Prompt tokens that were computed, those of preempted requests again; as far as the result says."""
    computed: int = result.get("tokens_computed", -result["tokens_saved"])
    return computed
