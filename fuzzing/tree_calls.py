"""Tree calls: what the player does to the tree, to the tiers and to time. Chooses nothing itself."""

from __future__ import annotations

from fuzzing.lists.calls import recorded
from fuzzing.view import View
from fuzzing.world.plain import Ask


class TreeCalls(View):
    """The calls that speak of no sequence."""

    @recorded
    def truncate(self, ask: Ask, keep: int = 0) -> None:
        """Forget the end of something; open claims keep what they found."""
        self.trial.reached["truncated under claims"] += bool(self.open)
        self.trial.do("truncate", ask, keep)

    @recorded
    def hint(self, ask: Ask, back: int = 0, keep: int = 0) -> None:
        """Say of stored text when it comes back."""
        self.trial.reached["hinted page"] += self.trial.do("hint", ask, back, keep)

    @recorded
    def clear(self, again: bool = False) -> None:
        """Forget everything; open claims keep what they found."""
        if self.open:
            self.trial.reached["cleared under claims"] += 1
        self.trial.do("clear", again)

    @recorded
    def forget(self, pattern: int = 0) -> None:
        """Forget all of some scopes."""
        if self.trial.do("forget", pattern):
            self.trial.reached["scope forgotten"] += 1

    @recorded
    def offload(self, num_pages: int = 0, group: int = 0) -> None:
        """Early shadows."""
        self.trial.do("offload", num_pages, group)

    @recorded
    def copy_down(self, limit: int = 0) -> None:
        """Copies in the slow tier, ahead."""
        self.trial.do("copy_down", limit)

    @recorded
    def take_changes(self, restore: bool = False) -> None:
        """Somebody who keeps what is in the slow tier hears what changed."""
        if self.world.slow:
            self.trial.restore() if restore else self.trial.take_changes()

    @recorded
    def flush(self) -> None:
        """A router hears what happened."""
        self.trial.flush()

    @recorded
    def refresh(self, seconds: float = 0) -> None:
        """Time passes."""
        self.trial.pass_time(seconds)
        self.trial.do("refresh")
