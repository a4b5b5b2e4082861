"""Random requests: small, alike, and often sharing a prefix. Knows no cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from fuzzing.oracle.page import Page
from fuzzing.oracle.state import Row
from fuzzing.world import build
from fuzzing.world.plain import Ask, Encoder, Path, Runs, World

PRIORITIES = (0, 29, 30, 35, 90)
SECONDS = (None, 1, 5)
MEMORY = 12  # requests remembered, to share prefixes with
MAX_PROMPT = 24  # in small worlds
MANY, FEW = 100, 9  # paths
PLAIN = (0, 0, 0)  # the extra words of a token that carries nothing


class Asks:
    """Makes requests from a small alphabet, many of them from the beginnings of earlier ones."""

    def __init__(
        self, rng: Random, world: World, at: Mapping[Path, Sequence[Page | None]], talks: bool = False
    ) -> None:
        self.rng, self.world, self.at = rng, world, at  # at: the tree, as it is at any time
        self.talks = talks  # whether all have sessions, which go on, and most name points
        self.alphabet = range(rng.randint(2, 3))
        self.scopes = rng.randint(1, len(build.SCOPES))
        whole = [slots for slots, one in zip(world.tiers[0], world.kinds, strict=True) if one.kind == "full"]
        self.alike = 0.75 if world.scale == 1 else 0.5  # share of requests like an older one
        self.longest = MAX_PROMPT * world.scale  # prompt
        self.room = min(whole, default=self.longest) or self.longest  # blocks
        self.past: list[Ask] = []

    def token(self) -> int:
        """Any token."""
        return self.rng.choice(self.alphabet)

    def remember(self, row: Row) -> None:
        """What a sequence has become may be asked for again."""
        self._keep(build.resumed(row.ask, tuple(row.tokens), row.kept))

    def _keep(self, ask: Ask) -> None:
        self.past.append(ask)
        if len(self.past) > MEMORY:
            self.past.pop(self.rng.randrange(MEMORY))

    def make(self, name: str, like: Path | None = None) -> Ask:
        """A request; perhaps along a path of the tree, perhaps like an older one."""
        rng = self.rng
        old = rng.choice(self.past) if self.past and rng.random() < self.alike else None
        if like is not None:
            tokens = tuple(token for block in like[1:] for token, *_ in block)
            scope, encoder = build.ORIGINS[like[0]]
            old = Ask("", tokens[: self.longest], scope, encoder=encoder)
        keep, total = self._lengths(old) if like is None else self._along(len(tokens))
        tokens = (*(old.tokens[:keep] if old else ()), *(self.token() for _ in range(total - keep)))
        scope = old.scope if old and rng.random() < 0.9 else rng.randrange(self.scopes) if rng.random() < 0.3 else 0
        ask = Ask(
            name, tokens, scope, self._extra_ids(old, keep, total), self._media(old, keep, total),
            ranges=self._ranges(total), **self._options(total, old),
        )  # fmt: skip
        ask = build.named(ask, self.world.block_size)
        self._keep(ask)
        return ask

    def make_snug(self, name: str) -> Ask:
        """A request of just the size the pools were made for, often along older tokens."""
        ask, model = self.make(name), self.world.snug
        if model is None or self.rng.random() < 0.2:
            return ask
        missing = len(model.tokens) - len(ask.tokens)
        tokens = (*ask.tokens[: len(model.tokens)], *(self.token() for _ in range(missing)))
        return build.named(
            replace(model, name=name, tokens=tokens, scope=ask.scope, snapshots=ask.snapshots), self.world.block_size
        )

    def cold_path(self) -> Path | None:
        """A block of plain tokens that is not on the device, if there is one."""
        cold = [path for path, pages in self.at.items() if any(page and 0 not in page.copies for page in pages)]
        return self._plain_one(cold)

    def slow_path(self) -> Path | None:
        """One that is in the slow tier only."""
        far = [path for path, pages in self.at.items() if any(page and not page.is_near(self.world) for page in pages)]
        return self._plain_one(far)

    def _plain_one(self, paths: Sequence[Path]) -> Path | None:
        """One of them whose tokens carry nothing, if there is one; of many a few are looked at."""
        paths = paths if len(paths) < MANY else self.rng.sample(paths, FEW)
        plain = [path for path in paths if not any(identity[1:] != PLAIN for block in path[1:] for identity in block)]
        return self.rng.choice(plain) if plain else None

    def _lengths(self, old: Ask | None) -> tuple[int, int]:
        """Tokens shared with an older request, and tokens in all: mostly so few that several fit."""
        rng = self.rng
        fit = min(self.longest, self.room * self.world.block_size)
        least = 1 if self.world.scale == 1 else fit // 6
        total = rng.randint(least, self.longest if rng.random() < 0.05 else max(least, fit * 2 // 3))
        if old is None:
            return 0, total
        whole = min(len(old.tokens), self.longest)
        keep = whole if rng.random() < 0.5 else rng.randint(1, whole)
        return keep, keep if rng.random() < 0.4 else max(keep, total)

    def _along(self, whole: int) -> tuple[int, int]:
        """The same for a path of the tree: mostly all of it, and a little more, which makes its last block useful."""
        most = min(whole, self.longest)
        keep = most if self.rng.random() < 0.8 else self.rng.randint(1, most)
        return keep, keep + self.rng.choice((0, 1, 1, 2))

    def _extra_ids(self, old: Ask | None, keep: int, total: int) -> tuple[int, ...]:
        have = old.extra_ids[:keep] if old else ()
        if not have and self.rng.random() > 0.06:
            return ()
        more = (self.rng.choice((0, 0, 0, 1, 2)) for _ in range(total - keep))
        return (*(have or [0] * keep), *more)

    def _media(self, old: Ask | None, keep: int, total: int) -> Runs:
        if old and old.media:
            return build.cut(old.media, keep)
        if self.rng.random() > 0.06 or total - keep < 1:
            return ()
        start = self.rng.randint(keep, total - 1)
        middle = self.rng.randint(start + 1, total)
        runs = [(start, middle)]
        if middle + 1 < total and self.rng.random() < 0.5:
            runs.append((middle + 1, total))
        return ((self.rng.randrange(len(build.DIGESTS)), tuple(runs)),)

    def _ranges(self, total: int) -> tuple[tuple[int, int | None, int, int | None], ...]:
        rng = self.rng
        if rng.random() > 0.35:
            return ()
        cuts = sorted(rng.sample(range(total + 3), 3))
        first = (cuts[0], cuts[1], rng.choice(PRIORITIES), rng.choice(SECONDS))
        if rng.random() < 0.5:
            return (first,)
        end = None if rng.random() < 0.5 else cuts[2]
        return first, (cuts[1], end, rng.choice(PRIORITIES), rng.choice(SECONDS))

    def _options(self, total: int, old: Ask | None) -> dict[str, Any]:
        rng = self.rng
        options: dict[str, Any] = {}
        if rng.random() < 0.2:
            options["decode"] = (rng.choice(PRIORITIES), rng.choice(SECONDS))
        if rng.random() < 0.3:
            options["by"] = "max"
        if rng.random() < 0.07:
            options["reuse"] = False
        if rng.random() < 0.07:
            limit = rng.randint(0, total + 2)
            options |= {"redo": 1 + limit % 2} if limit % 3 else {"reuse_limit": limit}
        if rng.random() < 0.1:
            options["beams"] = rng.randint(2, 3)
        if rng.random() < 0.12:
            options["extra_tokens"] = rng.randint(1, 5)
        if rng.random() < 0.3:
            options["max_new_tokens"] = rng.choice((1, 2, 3, 4, 5, 6, 60))
        if rng.random() < 0.08:
            options["length"] = max(1, total + rng.randint(-4, 4))
        if self.talks:
            goes_on = old is not None and old.session is not None and rng.random() < 0.8
            options["session"] = old.session if old is not None and goes_on else rng.randrange(3)
        elif rng.random() < 0.3:
            options["session"] = rng.randrange(3)
        if rng.random() < 0.12:
            options["uncut"] = self._uncut(total)
        return options if self.world.is_plain else options | self._group_options(total, old, options.get("uncut", ()))

    def _uncut(self, total: int) -> tuple[tuple[int, int], ...]:
        """One or two spans that one step computes; mostly no longer than it may."""
        rng, most = self.rng, self.world.max_chunk or 8
        start = rng.randrange(total)
        first = (start, min(total, start + rng.randint(1, most + (rng.random() < 0.05))))
        rest = total - first[1]
        if rest < 1 or rng.random() < 0.6:
            return (first,)
        start = first[1] + (0 if rng.random() < 0.5 else rng.randrange(rest))
        return first, (start, min(total, start + rng.randint(1, most)))

    def _group_options(self, total: int, old: Ask | None, uncut: tuple[tuple[int, int], ...]) -> dict[str, Any]:
        """What only some kinds of groups look at."""
        rng, options = self.rng, dict[str, Any]()
        if rng.random() < (0.7 if self.talks else 0.3):
            places = range(1, total + 1)
            chosen = sorted(rng.sample(places, min(total, rng.randint(1, 3))))
            options["snapshots"] = tuple(at for at in chosen if not any(start < at < stop for start, stop in uncut))
        if self.world.has_state and rng.random() < 0.9:
            options["length"] = None  # else it will be refused, which is tried often enough
        if self.world.num_own < self.world.num_groups and rng.random() < 0.8:
            length = rng.choice((1, self.world.block_size + 1, self.world.block_size * 2))
            told = rng.choice(("tokens", "tokens", "digest", "nothing"))
            serial = rng.randrange(1, 1 << 30) if told == "nothing" else 0
            options["encoder"] = Encoder(length, rng.randrange(len(build.DIGESTS)), told, serial)
            if old is not None and old.encoder is not None and rng.random() < 0.7:
                options["encoder"] = old.encoder
        return options
