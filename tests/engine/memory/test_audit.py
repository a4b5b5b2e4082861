"""The audit: pages whose bytes were never computed for their text do not go out, and are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.tiers.shared import audit as page_audit
from quire.tiers.shared.audit import MOST_HASHES, PageAudit

from ..steps import words
from .test_shared import answer, cache_of, settle, sharing


def audit_of(engine: object) -> PageAudit:
    audit = cache_of(engine).audit  # type: ignore[arg-type]
    assert audit is not None
    return audit


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_next"])
def test_what_was_computed_goes_out_and_nothing_else(name: str, tmp_path: Path) -> None:
    with sharing(name, tmp_path, audit=True) as first:
        answer(first, words(0, 60))
        settle(first)
        sent = cache_of(first).counts().sent
        assert sent == audit_of(first).num_right > 0 and not audit_of(first).num_unknown
        run = first.submit(words(500, 60))
        while not first.scheduler.ready:  # its prompt is computed, and none of it has gone out
            first.step()
        for arena in first.pages.arenas:
            arena[:] = 0xEE
        first.cancel(run)
        request = run.request
        cache_of(first).publish(request)
        settle(first)
        audit = audit_of(first)
        assert audit.num_wrong > 0 and cache_of(first).counts().sent == sent
    with sharing(name, tmp_path, audit=True) as second:
        answer(second, words(0, 60))
        settle(second)
        assert cache_of(second).counts().hits > 0 and not audit_of(second).num_wrong


def test_it_keeps_the_latest() -> None:
    audit, pages = PageAudit(), [np.full(8, nth, np.uint8) for nth in range(MOST_HASHES + 1)]
    for page in pages:
        audit.note(b"name", page)
    assert not audit.is_right(b"name", pages[0])
    assert audit.is_right(b"name", pages[1]) and audit.is_right(b"name", pages[-1])
    assert audit.is_right(b"other", pages[0])
    assert repr(audit) == "PageAudit(2 right, 1 unknown, 1 wrong)"


def test_a_name_that_is_noted_again_is_among_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_audit, "MOST_NAMES", 2)
    audit, page, other = PageAudit(), np.zeros(8, np.uint8), np.ones(8, np.uint8)
    for name in (b"first", b"second", b"first", b"third"):
        audit.note(name, page)
    assert not audit.is_right(b"first", other) and not audit.is_right(b"third", other)
    assert audit.is_right(b"second", other) and audit.num_unknown == 1
