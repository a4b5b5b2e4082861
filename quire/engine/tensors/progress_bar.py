"""A progress bar on a terminal, for what takes seconds at start. Without a terminal, or without tqdm, there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def progress_bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Yields what says how much more is done."""
    try:
        tqdm = import_module("tqdm").tqdm
    except ImportError:
        yield lambda _: None
        return
    with tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=None, leave=False) as bar:
        yield bar.update
