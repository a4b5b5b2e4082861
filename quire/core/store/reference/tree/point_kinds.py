"""Kinds of resume points, guessed or named before any request has resumed there, and which of them earn their pages.

Owns what each kind has cost in pages and gained in blocks, and so whether its points count. Knows no nodes.

    spaced   every so many blocks of a prompt
    near     1 to 64 blocks before a prompt's end, in six bins: 1 to 2, 3 to 4, 5 to 8, ...
    end      the last block edge of a prompt
    named    where a caller said so
"""

SPACED, NEAR, END, NAMED, NUM_KINDS = 1, 2, 8, 9, 10  # 0: none; NEAR is the first of its bins
FARTHEST = 64  # blocks of a prompt behind the first point near its end
WORTH = 2  # pages of each group that one gained block may have cost


class Kinds:
    """The kinds of one store. A fading account of each: pages its points hold, blocks that are not computed again."""

    __slots__ = ("apart", "cost", "gain", "is_kept", "prices", "slots", "spacing", "worth")

    def __init__(self, spacing: int, row_pages: int, point_pages: int, slots: int, num_groups: int) -> None:
        self.spacing = spacing  # in blocks; 0: nothing is guessed
        self.apart = row_pages == 0  # there are points only where a state is kept
        near = [row_pages] * (END - NEAR)  # such points lie side by side: each one more takes a page per window
        self.prices = [0, point_pages, *near, point_pages, point_pages]
        self.slots = slots
        self.worth = WORTH * num_groups
        self.cost = [0] * NUM_KINDS
        self.gain = [0] * NUM_KINDS
        self.is_kept = [kind == NAMED for kind in range(NUM_KINDS)]

    def kind_at(self, depth: int, edge: int) -> int:
        """What the node at that depth is to a prompt whose last block edge is `edge`; 0: nothing."""
        if not self.spacing:
            return 0
        if depth == edge:
            return END
        if not self.apart and edge - depth <= FARTHEST:
            return NEAR + max(0, (edge - depth - 1).bit_length() - 1)
        return 0 if depth % self.spacing else SPACED

    def pay(self, kind: int) -> None:
        """One more point of a kind."""
        self.cost[kind] += self.prices[kind]
        if self.cost[kind] >= 2 * self.slots:
            self.cost[kind] //= 2
            self.gain[kind] //= 2
        self._judge(kind)

    def earn(self, kind: int, blocks: int) -> None:
        """A point of a kind was resumed at, or would have been: so many blocks behind any other."""
        self.gain[kind] += blocks
        self._judge(kind)

    def _judge(self, kind: int) -> None:
        """Callers are trusted until what they named has cost a fourth of the slots."""
        trusted = kind == NAMED and self.cost[kind] <= self.slots // 4
        self.is_kept[kind] = trusted or 0 < self.cost[kind] <= self.worth * self.gain[kind]
