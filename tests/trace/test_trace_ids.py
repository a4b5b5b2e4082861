"""Block ids: a trace shares exactly what its tokens share, and without the key it tells nothing else."""

from __future__ import annotations

import stat
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import InputError, Scope
from quire.trace.read.trace import shared
from quire.trace.record.block_ids import TraceKey, read_key
from tests.effort import cases

from .logs import KEY, lines_of, made_of, of_tokens, trace_of

OTHER = TraceKey(b"another secret of the tests, too")


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Prompts that continue one another, or leave at any token; some in a scope of their own."""
    prompts: list[list[int]] = []
    for _ in range(draw(st.integers(2, 8))):
        base: list[int] = draw(st.sampled_from([[], *prompts]))
        kept = base[: draw(st.integers(0, len(base)))]
        prompts.append(kept + draw(st.lists(st.integers(0, 2), min_size=1, max_size=12)))
    lines = of_tokens(prompts)
    for line in lines:
        line["model"] = draw(st.sampled_from(["a", "a", "a", "b"]))
    return lines


def common(one: dict[str, Any], other: dict[str, Any], size: int) -> int:
    """Tokens of whole blocks that both begin with; of equal prompts all."""
    if one["model"] != other["model"]:
        return 0
    a, b = one["prompt"], other["prompt"]
    if a == b:
        return len(a)
    count = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return count // size * size


@pytest.mark.long
@settings(max_examples=cases(25, 60), deadline=None)
@given(logs(), st.integers(1, 5))
def test_a_trace_shares_what_its_tokens_share(lines: list[dict[str, Any]], size: int) -> None:
    with TemporaryDirectory() as folder:
        trace = trace_of(Path(folder), lines, block_size=size)
        mine, others = (
            [line["hash_ids"] for line in lines_of(made_of(Path(folder), lines, key, block_size=size)[0])]
            for key in (KEY, OTHER)
        )
    assert trace.unit == size and [ask.length for ask in trace] == [len(line["prompt"]) for line in lines]
    for (n, one), (m, two) in combinations(enumerate(lines), 2):
        assert shared(trace[n], trace[m]) == common(one, two, size)
    names: dict[int, tuple[Any, ...]] = {}  # an id is one beginning, whoever has it, and a beginning one id
    for line, ids in zip(lines, mine, strict=True):
        for place, name in enumerate(ids):
            beginning = (line["model"], *line["prompt"][: (place + 1) * size])
            assert names.setdefault(name, beginning) == beginning
    assert len(set(names.values())) == len(names) and not names.keys() & {name for ids in others for name in ids}


def test_ids_are_the_same_for_the_same_key_whatever_made_them() -> None:
    tokens = np.arange(50, dtype=np.int32)
    again = TraceKey(b"one secret of the tests, 32 bytes")
    assert KEY.hash_ids(tokens, 16) == again.hash_ids(tokens, 16) and KEY.fingerprint == again.fingerprint
    assert KEY.hash_ids(tokens, 16)[:3] == KEY.hash_ids(tokens[:48], 16)
    assert KEY.hash_ids(tokens, 16)[3] != KEY.hash_ids(np.arange(64, dtype=np.int32), 16)[3], "a part is not the whole"
    assert not set(KEY.hash_ids(tokens, 16)) & set(KEY.hash_ids(tokens, 16, Scope(salt="x")))
    assert not set(KEY.hash_ids(tokens, 16)) & set(TraceKey().hash_ids(tokens, 16)) and TraceKey() is not TraceKey()
    assert all(0 <= name < 1 << 63 for name in KEY.hash_ids(np.arange(5000, dtype=np.int32), 1))
    assert repr(KEY) == "TraceKey()" and KEY.fingerprint != OTHER.fingerprint


def test_a_key_gives_the_same_ids_in_every_version_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or traces of several days could not be joined."""
    tokens = np.arange(40, dtype=np.int32)
    for store in ("auto", "twin"):
        monkeypatch.setenv("QUIRE_STORE", store)
        key = TraceKey(b"one secret of the tests, 32 bytes")
        assert key.hash_ids(tokens, 16) == [4437803391692915317, 3618445251624281015, 3863954639283942655]
        salted = [1986844801395867418, 7232744994956974638, 8484468486782611676]
        assert key.hash_ids(tokens, 16, Scope(salt="x")) == salted
        assert (key.scope_id(Scope(salt="x")), key.fingerprint) == (7073708293506629642, "ba4bbd48c70bbd79")


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path, tokens = tmp_path / "key", np.arange(40, dtype=np.int32)
    first, second = read_key(path), read_key(path)
    assert first.hash_ids(tokens, 16) == second.hash_ids(tokens, 16)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_bytes()) == 32
    path.write_bytes(b"short")
    with pytest.raises(InputError, match="it has 5 bytes; give 16 to 4096 random bytes"):
        read_key(path)
    with pytest.raises(InputError, match="key file"):
        read_key(tmp_path / "none" / "key")
    with pytest.raises(InputError, match="key file"):
        read_key(tmp_path)
