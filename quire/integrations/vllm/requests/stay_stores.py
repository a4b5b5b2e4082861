"""StayStores: what is stored of a stay, block by block, and what is left. Owns its writer; which step stores what is
PageStores' to say."""

from __future__ import annotations

from quire.core.cache import Cache
from quire.core.outside.writer import Writer
from quire.core.state.claim import Refusal
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.requests.jobs import CopyJob
from quire.integrations.vllm.requests.stay_text import StayText
from quire.integrations.vllm.requests.tables import Named, Tables


class StayStores:
    """`sent` <= `due`: tokens that are stored, being stored or found to be there, and tokens that are computed."""

    __slots__ = ("_text", "bad", "due", "full", "is_noted", "jobs", "saved", "sent", "tables", "writer")

    def __init__(self, text: StayText) -> None:
        self._text = text
        self.writer: Writer | None = None
        self.jobs: list[CopyJob] = []  # under way, in the order of their tokens
        self.sent = self.due = 0
        self.full = False  # nothing more of it is stored
        self.tables: Tables = ()  # its blocks when it had all that are due, while some are still to be stored
        self.is_noted = False  # as blocks that may be handed out again
        self.bad: dict[int, list[int]] = {}  # by group: blocks of its text whose pages could not be copied
        self.saved: dict[int, frozenset[int]] = {}  # by group: blocks that were stored before their turn

    @property
    def is_behind(self) -> bool:
        """Some of what is computed is still to be stored."""
        return self.sent < self.due and not self.full

    def skip_to(self, there: int) -> None:
        """So many tokens are loaded from here, and need not be stored."""
        self.sent = self.due = there

    def open_writer(self, cache: Cache) -> Writer:
        """For its prompt, without slots yet; behind what was loaded, which may be more than the prompt."""
        prompt = self._text.request.num_prompt_tokens
        made = cache.writer(self._text.prompt(cache), tier=HOST, from_=min(self.sent, prompt), end=0)
        assert not isinstance(made, Refusal)  # it asks for nothing
        self.writer = made
        if self.sent > prompt:  # it has come back: some of what it had generated is loaded, and is not its to store
            size, groups = cache.config.block_size, range(len(cache.config.groups))
            loaded = range(prompt // size, self.sent // size)
            made.extend(self._text.tokens()[prompt:], end=self.sent, skip=dict.fromkeys(groups, loaded))
        return made

    def take_slots(self, cache: Cache, end: int, skip: Named, also: Named) -> Refusal | None:
        """Slots for the whole blocks up to `end`, and for those of `also`. A refusal has taken none.

        The prompt is its writer's text, and what is generated is appended, so that retention distinguishes them.
        """
        writer = self.writer or self.open_writer(cache)
        length, last = writer.length, self.due if also else end
        tokens = self._text.tokens()[length:] if last > length else None
        return (
            writer.extend(tokens, end=end, skip=skip, also=also) if also else writer.extend(tokens, end=end, skip=skip)
        )

    def done(self) -> list[CopyJob]:
        """Jobs that have ended, and all before them: their pages become findable in the order of their tokens."""
        found = []
        while self.jobs and self.jobs[0].ended:
            job = self.jobs.pop(0)
            found.append(job)
            if job.bad:  # not to become findable, now or later
                for group, blocks in job.bad_blocks().items():
                    self.bad.setdefault(group, []).extend(blocks)
        return found

    def publish(self, end: int) -> int:
        """What was copied is findable up to this token, but for what could not be copied; returns new pages."""
        assert self.writer is not None
        return self.writer.written(end, self.bad)

    def close(self) -> None:
        """Its writer gives back what was not published."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
