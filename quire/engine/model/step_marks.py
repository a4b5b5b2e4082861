"""Where steps end on a GPU: moves between tiers wait for the last step that was read, and run beside the one in flight.

    device   ... step n (read) ...|... step n + 1 (in flight) ...
    copies                        |... pages down and up ...         then step n + 2

What a step in flight reads and writes, its rows hold: the cache frees none of it before the step is closed. Copies
inside the device's memory may read what that step writes, and wait for it (tiers/torch_tier.py).
"""

from __future__ import annotations

import torch

from quire.engine.model.pages import Pages


class StepMarks:
    """Marks on the stream of one engine's steps; nothing where the device is a processor, or is the only tier."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._on = pages.device.type == "cuda" and len(pages.tiers) > 1

    def mark(self) -> torch.cuda.Event | None:
        """The end of what has been launched by now."""
        if not self._on:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._pages.device))
        return event

    def wait_for(self, event: torch.cuda.Event | None) -> None:
        """Moves that begin from now on wait for that; None: for all that is launched by then."""
        if self._on:
            self._pages.move_behind(event)
