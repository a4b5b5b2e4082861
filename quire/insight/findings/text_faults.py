"""text_faults: a time or an id in a prompt, text that is written now so and now so, pieces in another order, history
that is cut or compacted. Found by pairs, checked token by token, replayed as they would be without the fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from quire.insight.findings.alignment import Change
from quire.insight.findings.exact import SAME, Differences, differences_of, examples_of
from quire.insight.findings.finding import Fetch, Finding, Place, at_least
from quire.insight.findings.pairs import Group, Pairs
from quire.insight.findings.prompt_rows.memory import hits, rows_of
from quire.insight.findings.repairs import DRIFT, Repairs
from quire.insight.findings.short_pieces import in_one_order, rows_of_tokens
from quire.trace.units import Int64

LEAST_AFFECTED = 0.25  # of an application's prompts that lost text
SURE = 0.4  # by 95 %: four of four, five of six, six of eight
REPLAYED = 4000  # requests
COMPACTED, LEAST_SUMMARY = "compacted", 8  # tokens that stand for what was cut
FEW_VARIANTS = 0.35  # different texts in one place: it is written in several ways
SOME_VARIANTS, FEW_TOKENS = 0.7, 8  # where they are short and stand anywhere
NARROW = 64  # tokens
ALIKE, LEAST_ALIKE = 0.8, 12  # of the tokens are in both, of so many: an id has less in common with another
MOST_LEFT_OUT = 8  # tokens at a history's end that are gone, where it is cut at its front
ADVICE: dict[str, str] = {
    Change.CHANGED: "Put what changes behind what stays: in the last message, or behind the tools.",
    DRIFT: "Write it in one way: trim white space, and fill one template in one place of the client.",
    Change.ORDER: "Sort the pieces before they are written, by name for instance.",
    Change.CUT: "Cut rarely and far, to half of the room for instance, not a little at each turn.",
    COMPACTED: "Compact rarely, and keep the text of a summary as it is until the next.",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeastFault:
    """What is worth a finding."""

    pairs: int = 8
    requests: float = 0.005  # of all
    gain: float = 0.05  # of an application's prompt tokens
    small_gain: float = 0.02  # the same, where it is a good part of what is computed
    computed: float = 0.15  # of the tokens that are computed

    def is_met(self, before: float, after: float) -> bool:
        """Whether this gain is worth a finding."""
        gain = after - before
        return gain >= self.gain or (gain >= self.small_gain and gain >= self.computed * (1 - before))


class TextFaults:
    """Findings in one log."""

    def __init__(
        self, pairs: Pairs, capacity: int, fetch: Fetch, place: Place, least: LeastFault = LeastFault()
    ) -> None:
        self._pairs, self._capacity, self._fetch, self._place, self._least = pairs, capacity, fetch, place, least

    def find(self) -> list[Finding]:
        """The weightiest first."""
        groups = self._pairs.groups()
        found = [(one, group) for group in groups if (one := self._finding(group)) is not None]
        found.sort(key=lambda both: -both[0].gain)
        kept: list[tuple[Finding, Group]] = []
        for one, group in found:  # pieces of a chunk or two are found twice: as pieces, and by their tokens
            twice = (other for have, other in kept if have.kind == one.kind == Change.ORDER)
            if not any(np.isin(group.members, other.members).any() for other in twice):
                kept.append((one, group))
        return [one for one, _ in kept]

    def _finding(self, group: Group) -> Finding | None:
        log = self._pairs.log
        if not self._is_enough(group):
            return None
        lost = np.intersect1d(self._pairs.has_lost(), group.members)
        if len(lost) < self._least.requests * len(log):
            return None
        exact = differences_of(group.pairs, self._fetch)
        kind = _kind_of(group.change, exact)
        if (group.change is Change.CUT and exact.left_out > MOST_LEFT_OUT) or self._is_edited(group, kind, exact):
            return None
        before, after = self._gain(group, kind, exact)
        if not self._least.is_met(before, after):
            return None
        name = self._name_of(group.members)
        first = group.pairs[0]
        message = self._place(first.request, exact.middle if exact.place is None else exact.place)
        lines = tuple(int(log.lines[pair.request][0]) for pair in group.pairs[:3])
        return Finding(
            kind, _text_of(group.change, kind, exact), ADVICE[kind],
            len(group.members) / len(log), len(lost) / len(group.members) * len(group.pairs) / group.looked,
            before, after, at_least(len(group.pairs), group.looked), name, exact.middle, message, lines,
            int(log.lengths[group.members].sum()), {"tokens": exact.width},
        )  # fmt: skip

    def _is_edited(self, group: Group, kind: str, exact: Differences) -> bool:
        """Whether somebody works on the text: each version differs from the one before in another place."""
        replaced = 2 * exact.other_width >= exact.width  # else something is put in, as a talk that grows before it
        if kind != Change.CHANGED or exact.place is not None or not replaced:
            return False
        both = [(pair, self._pairs.pair_of(pair.other)) for pair in examples_of(group.pairs)]
        moved = [abs(pair.aligned.place - one.aligned.place) > NARROW for pair, one in both if one is not None]
        return 2 * sum(moved) > len(moved)

    def _is_enough(self, group: Group) -> bool:
        """Many pairs, or most of few: what is seldom lost can have one cause."""
        count = len(group.pairs)
        sure = at_least(count, group.looked)
        return count >= LEAST_AFFECTED * group.looked and (count >= self._least.pairs or sure >= SURE)

    def _gain(self, group: Group, kind: str, exact: Differences) -> tuple[float, float]:
        """Hit rates of the application's requests alone, in its share of the memory."""
        log = self._pairs.log
        middle = np.searchsorted(group.members, group.pairs[0].request)
        first = max(0, min(int(middle) - 1, len(group.members) - REPLAYED))
        chosen: Int64 = group.members[first : first + REPLAYED]
        share = log.lengths[group.members].sum() / log.lengths.sum()
        capacity = int(max(self._capacity * share, 1))
        plain = [(log.chunks_of(request), log.sizes_of(request)) for request in chosen.tolist()]
        if kind == Change.ORDER and group.change is Change.CHANGED:  # pieces too short for chunks
            tokens = self._fetch(chosen.tolist())
            prompts = [tokens[request] for request in chosen.tolist()]
            plain, mended = rows_of_tokens(prompts), rows_of_tokens(in_one_order(prompts, exact.moved_in))
        else:
            mended = Repairs(self._pairs, kind, exact.width, exact.middle).rows(chosen)
        rates = []
        for rows in (plain, mended):
            built = rows_of(rows, log.scopes[chosen])
            rates.append(float(hits(built, capacity).sum() / built.lengths.sum()))
        return rates[0], rates[1]

    def _name_of(self, members: Int64) -> str | None:
        """The name that most of them have."""
        code, count = Counter(self._pairs.log.names[members].tolist()).most_common(1)[0]
        return self._pairs.log.name_list[code] if count >= 0.5 * len(members) else None


def _kind_of(change: Change, exact: Differences) -> str:
    """Few different texts, or a word here and a word there, are no time."""
    if change is Change.CUT and exact.width >= LEAST_SUMMARY:
        return COMPACTED
    if change is Change.CHANGED and exact.moved >= SAME:
        return Change.ORDER.value
    words = exact.place is None and max(exact.width, exact.other_width) <= FEW_TOKENS
    spelled = exact.alike >= ALIKE and exact.width >= LEAST_ALIKE  # lines between which white space differs, say
    drifts = exact.variants <= FEW_VARIANTS or ((words or spelled) and exact.variants <= SOME_VARIANTS)
    return DRIFT if change is Change.CHANGED and exact.width <= NARROW and drifts else change.value


def _text_of(change: Change, kind: str, exact: Differences) -> str:
    where = f"at token {exact.place:,}" if exact.place is not None else f"about token {exact.middle:,}"
    if kind == DRIFT:
        return f"The same text is written in several ways: {where} a few tokens differ, and what follows is equal."
    if kind == Change.ORDER:
        return f"The same pieces come in another order each time, from {where.removeprefix('at ')} on."
    if kind == COMPACTED:
        return f"The history is compacted {where}: about {exact.other_width:,} tokens become {exact.width:,}."
    if change is Change.CUT:
        tokens = f"{exact.other_width:,}"
        return f"The history is cut at its front, {where}: about {tokens} tokens at a time, and all behind moves."
    what = "a time, a date or an id" if exact.width <= NARROW else "text that is new each time"
    some = "1 token" if exact.width == 1 else f"{exact.width:,} tokens"
    return f"What stands {where} is another each time ({some}: {what}), and what follows is equal."
