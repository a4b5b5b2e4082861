"""The benchmark as a table for people. Measures nothing."""

from __future__ import annotations

ROWS = {
    "cold_8k_us": "8k prompt, nothing cached: key, match, allocate, commit",
    "hit90_8k_us": "8k prompt, 90 % cached",
    "full_8k_us": "8k prompt, pool full: every slot evicts",
    "admit_64x8k_us": "two-phase admission of 64 x 8k, half cached, committed",
    "decode_1024_us": "decode step of 1,024 sequences: commit, append, table",
    "release_8k_us": "release 8k",
    "claim_drop_8k_us": "claim 7k cached tokens, and drop",
}
FACTS = {
    "tiers_events_factor": "cold row with a host tier and events on, over without",
    "event_ns_per_block": "of which recording and hashing, ns per block",
    "groups_cold_factor": "8k prompt in 4 chunks, full + window + state, over full alone",
    "groups_hit_factor": "the same, three quarters cached",
    "groups_decode_factor": "decode step of 1,024, full + window + state, over full alone",
    "find_factor": "find the same and close, over claim and drop",
    "probe_factor": "probe for the same, over claim and drop",
    "bytes_per_block": "metadata bytes per cached block, beyond its tokens",
    "ghost_bytes_per_slot": "bytes for what is known of pages that are gone, per slot, at most",
    "scale_1m_over_10k": "cost at 1M indexed blocks over 10k (worse of cold and hit)",
    "gc_ms": "full garbage collection beside 89k cached blocks, ms",
}


def render(numbers: dict[str, float]) -> str:
    """Minima in microseconds, and ratios."""
    lines = [f"{'':58}{'quire us':>10}{'floor us':>10}{'x floor':>9}{'vLLM us':>11}{'vLLM x':>8}"]
    for name, what in ROWS.items():
        ours, floor, vllm = numbers[name], numbers.get(f"floor_{name}"), numbers.get(f"vllm_{name}")
        line = f"{what:58}{ours:10.1f}"
        line += f"{floor:10.1f}{ours / floor:9.1f}" if floor else f"{'-':>10}{'-':>9}"
        line += f"{vllm:11.1f}{vllm / ours:8.0f}" if vllm else f"{'-':>11}{'-':>8}"
        lines.append(line)
    lines += [f"{what:58}{numbers[name]:10.1f}" for name, what in FACTS.items() if name in numbers]
    return "\n".join(lines)
