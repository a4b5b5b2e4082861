"""From logits to tokens: the right distribution, and the same token whoever else is in the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from quire.core.records.errors import InputError  # noqa: E402
from quire.engine.sampling import kept_tokens  # noqa: E402
from quire.engine.sampling.chance import uniform  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.sampling.sample import broken, choose, log_probs, sample  # noqa: E402
from quire.engine.sampling.sample_row import SampleRow  # noqa: E402
from quire.engine.sampling.sample_table import SampleColumns, SampleTable  # noqa: E402
from quire.engine.sampling.token_rules import TokenRules  # noqa: E402
from tests.effort import cases  # noqa: E402


def draws(row: list[float], sampling: Sampling, count: int, seed: int = 1) -> list[int]:
    """Tokens at `count` positions that all have the same logits."""
    logits = torch.tensor(row).expand(count, -1)
    return sample(logits, [SampleRow(sampling, seed, 0, position) for position in range(count)])


def counts(tokens: list[int], vocab: int) -> list[int]:
    return [tokens.count(token) for token in range(vocab)]


def assert_fits(tokens: list[int], probs: list[float]) -> None:
    """Chi-square: the deviation is what chance alone makes, up to six sigma; impossible tokens never come."""
    seen = counts(tokens, len(probs))
    assert all(number == 0 for number, prob in zip(seen, probs, strict=True) if prob == 0)
    wanted = [(number, prob * len(tokens)) for number, prob in zip(seen, probs, strict=True) if prob > 0]
    chi = sum((number - mean) ** 2 / mean for number, mean in wanted)
    free = len(wanted) - 1
    assert chi < free + 6 * math.sqrt(2 * free) + 1e-9


def softmax(row: list[float], temperature: float) -> list[float]:
    weights = [math.exp(value / temperature) for value in row]
    return [weight / sum(weights) for weight in weights]


def cut(probs: list[float], keep: set[int]) -> list[float]:
    mass = sum(probs[token] for token in keep)
    return [prob / mass if token in keep else 0.0 for token, prob in enumerate(probs)]


ROW = [1.0, -0.5, 2.0, 0.0, 1.5, -3.0, 0.5, 2.0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_tokens_are_drawn_from_the_softmax(temperature: float, seed: int) -> None:
    assert_fits(draws(ROW, Sampling(temperature=temperature), 20_000, seed), softmax(ROW, temperature))


def test_top_k_and_top_p_keep_the_shape_of_the_rest() -> None:
    probs = softmax(ROW, 1.0)  # by likelihood: 2 and 7, then 4, 0, 6, 3, 1, 5
    assert_fits(draws(ROW, Sampling(temperature=1.0, top_k=3), 20_000), cut(probs, {2, 7, 4}))
    mass = probs[2] + probs[7] + probs[4]
    assert_fits(draws(ROW, Sampling(temperature=1.0, top_p=mass - 0.01), 20_000), cut(probs, {2, 7, 4}))
    assert_fits(draws(ROW, Sampling(temperature=1.0, top_p=mass + 0.01), 20_000), cut(probs, {2, 7, 4, 0}))


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    row = [math.log(prob) for prob in (0.4, 0.3, 0.2, 0.1)]
    # of all, the first three would be needed for 0.75; of the first two (4 : 3), both
    assert_fits(draws(row, Sampling(temperature=1.0, top_p=0.75), 5_000), [4 / 9, 3 / 9, 2 / 9, 0.0])
    assert_fits(draws(row, Sampling(temperature=1.0, top_k=2, top_p=0.75), 5_000), [4 / 7, 3 / 7, 0.0, 0.0])
    assert_fits(draws(row, Sampling(temperature=1.0, top_k=2, top_p=0.5), 5_000), [1.0, 0.0, 0.0, 0.0])


def test_edges_of_top_k_and_top_p() -> None:
    assert set(draws(ROW, Sampling(temperature=5.0, top_k=1), 200)) == {2}  # of two equals the lower id, as greedy
    assert set(draws(ROW, Sampling(temperature=5.0, top_p=1e-9), 200)) == {2}
    every = draws(ROW, Sampling(temperature=5.0), 200)
    for same in ({"top_k": 8}, {"top_k": 1000}, {"top_p": 1.0 - 1e-12}, {"top_k": 8, "top_p": 1.0}):
        assert draws(ROW, Sampling(temperature=5.0, **same), 200) == every


def test_equal_logits_are_kept_by_id() -> None:
    assert_fits(draws([0.0] * 10, Sampling(temperature=1.0, top_k=4), 4_000), [0.25] * 4 + [0.0] * 6)
    assert_fits(draws([0.0] * 10, Sampling(temperature=1.0, top_p=0.35), 4_000), [0.25] * 4 + [0.0] * 6)
    # more equals than are looked at first, at both ends of the vocabulary
    wide = torch.zeros(1, 3000)
    wide[0, 2999] = 1.0
    kept = {sample(wide, [SampleRow(Sampling(temperature=1.0, top_k=3), 1, 0, place)])[0] for place in range(100)}
    assert kept == {0, 1, 2999}


@pytest.mark.parametrize("fields", [{"top_k": 700}, {"top_p": 0.97}, {"top_k": 2000, "top_p": 0.6}])
def test_a_short_head_changes_nothing(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens are looked at first, the outcome is that of a full sort."""
    logits = torch.randn(20, 3000, generator=torch.Generator().manual_seed(3))
    rows = [SampleRow(Sampling(temperature=1.3, **fields), 5, 0, row) for row in range(20)]
    outcomes = []
    for head in (2, 64, 256, 3000):
        monkeypatch.setattr(kept_tokens, "HEAD", head)
        outcomes.append(sample(logits, rows))
    assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.parametrize("temperature", [1e-4, 1e-12, 1e-38, 5e-324])
def test_the_coldest_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
    rows = [SampleRow(Sampling(temperature=temperature), 7, 0, row) for row in range(50)]
    assert sample(logits, rows) == logits.argmax(dim=-1).tolist()


def test_the_hottest_temperature_is_uniform() -> None:
    assert_fits(draws(ROW, Sampling(temperature=1e300), 8_000), [1 / 8] * 8)


def test_no_temperature_draws_what_is_forbidden() -> None:
    assert set(draws([-math.inf, 0.0, -math.inf, 1.0], Sampling(temperature=1e300), 50)) == {1, 3}


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert sample(torch.tensor([[0.0, 3.0, 3.0], [1.0, 1.0, 1.0]]), [SampleRow(Sampling(), 0, 0, 0)] * 2) == [1, 0]
    assert sample(torch.tensor([[0.0, 3.0, 3.0]]).bfloat16(), [SampleRow(Sampling(), 0, 0, 0)]) == [1]


def row_of(sampling: Sampling, seed: int, branch: int, position: int, text: list[int]) -> SampleRow:
    """Behind a text whose first half is the prompt."""
    prompt, answer = (np.array(half, np.int32) for half in (text[: len(text) // 2], text[len(text) // 2 :]))
    rules = TokenRules(sampling, prompt, [1, 2], [(3,), (4, 5), (4, 4, 6)]) if sampling.edits_logits else None
    return SampleRow(sampling, seed, branch, position, rules, answer)


SAMPLINGS = st.builds(
    row_of,
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 5, 400]),
        top_p=st.sampled_from([0.2, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.0, 0.2]),
        min_tokens=st.sampled_from([0, 0, 3]),
        logit_bias=st.sampled_from([(), {3: 4.0, 7: -100}]),
        allowed_token_ids=st.sampled_from([None, None, (1, 5, 6, 11)]),
        presence_penalty=st.sampled_from([0.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, -0.3]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
    ),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    st.integers(0, 4000),
    st.lists(st.integers(0, 15), max_size=12),
)


@pytest.mark.long
@settings(max_examples=cases(25, 60), deadline=None)
@given(st.lists(SAMPLINGS, min_size=1, max_size=9), st.randoms(use_true_random=False), st.sampled_from([16, 333, 1003]))
def test_batch_mates_change_nothing(rows: list[SampleRow], chance: Any, vocab: int) -> None:
    logits = 3 * torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(chance.randrange(2**30)))
    together = sample(logits, rows)
    alone = [sample(logits[nth : nth + 1].clone(), [row])[0] for nth, row in enumerate(rows)]
    assert together == alone
    order = list(range(len(rows)))
    chance.shuffle(order)
    assert sample(logits[order], [rows[row] for row in order]) == [together[row] for row in order]


def chance(*places: tuple[int, int, int]) -> list[float]:
    """Of (seed, branch, position), all at once."""
    numbers: list[float] = uniform(*zip(*places, strict=True)).tolist()
    return numbers


def test_chance_is_seed_branch_and_position() -> None:
    assert chance((1, 2, 3)) == chance((1, 2, 3))
    places = [(seed, branch, place) for seed in range(10) for branch in range(10) for place in range(10)]
    assert len(set(chance(*places))) == 1000
    assert chance(*places[::7]) == chance(*places)[::7]  # whoever else is asked for
    assert len(set(chance((1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2)))) == 4


def test_chance_is_the_same_on_every_machine() -> None:
    assert chance((0, 0, 0), (42, 1, 100), (2**64 - 1, 7, 4095)) == [
        0.13870941014555427,
        0.6745872367327186,
        0.4389907146193316,
    ]


PINNED: dict[str, tuple[dict[str, Any], list[int]]] = {
    "plain": ({}, [462, 627, 326, 690, 323, 99, 639, 695, 557, 486, 195, 4]),
    "cold": ({"temperature": 0.3}, [462, 628, 327, 691, 330, 98, 639, 696, 557, 486, 194, 4]),
    "top_k": ({"top_k": 7}, [70, 688, 634, 393, 67, 30, 699, 696, 149, 78, 24, 591]),
    "top_p": ({"top_p": 0.8}, [453, 629, 337, 690, 306, 98, 640, 695, 548, 477, 186, 4]),
    "both": ({"top_k": 300, "top_p": 0.6}, [427, 629, 362, 691, 297, 90, 640, 688, 515, 443, 185, 4]),
}


@pytest.mark.parametrize(("fields", "wanted"), PINNED.values(), ids=PINNED)
def test_a_seed_gives_the_same_answer_in_every_version(fields: dict[str, Any], wanted: list[int]) -> None:
    logits = 3 * torch.arange(12 * 700, dtype=torch.float64).mul(0.7390851).sin().reshape(12, 700).float()
    sampling = Sampling(**({"temperature": 1.0} | fields))
    assert sample(logits, [SampleRow(sampling, 2**63 + 5, nth % 3, 40 * nth) for nth in range(12)]) == wanted


def test_neighbouring_chances_are_independent() -> None:
    """Positions, branches and seeds in turn: uniform on [0, 1), and the next does not follow from the last."""
    for series in (
        chance(*((1, 0, place) for place in range(8_000))),
        chance(*((1, branch, 5) for branch in range(8_000))),
        chance(*((seed, 0, 5) for seed in range(8_000))),
    ):
        assert all(0 <= number < 1 for number in series)
        assert_fits([int(number * 20) for number in series], [1 / 20] * 20)
        pairs = [int(a * 8) * 8 + int(b * 8) for a, b in zip(series[::2], series[1::2], strict=True)]
        assert_fits(pairs, [1 / 64] * 64)


def test_forbidden_and_huge_logits() -> None:
    row = [-math.inf, 2.0, -math.inf, 2.0]
    assert_fits(draws(row, Sampling(temperature=1.0), 2_000), [0.0, 0.5, 0.0, 0.5])
    assert_fits(draws(row, Sampling(temperature=1.0, top_k=3, top_p=0.99), 2_000), [0.0, 0.5, 0.0, 0.5])
    huge = [3e38, -3e38, 3e38, 0.0]
    assert_fits(draws(huge, Sampling(temperature=1.0), 2_000), [0.5, 0.0, 0.5, 0.0])
    assert set(draws([-math.inf, -5.0], Sampling(temperature=0.5), 50)) == {1}


@pytest.mark.parametrize("bad", [[0.0, math.nan, 1.0], [-math.inf] * 3, [0.0, math.inf, 1.0], [math.nan] * 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_are_an_error(bad: list[float], temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], bad, [2.0, 1.0, 0.0]])
    rows = [SampleRow(Sampling(temperature=temperature), 0, 0, row) for row in range(3)]
    with pytest.raises(InputError, match=r"rows \[1\] have a NaN, or no finite maximum; check"):
        sample(logits, rows)
    with pytest.raises(InputError, match=r"rows \[1\]"):
        log_probs(logits)
    assert broken(logits) == [1]
    assert broken(logits[[0, 2]]) == []


def test_one_row_of_logits_per_token() -> None:
    with pytest.raises(InputError, match="one row of logits per token"):
        sample(torch.zeros(2, 5), [SampleRow(Sampling(), 0, 0, 0)])
    assert sample(torch.zeros(0, 5), []) == []


def test_log_probs_are_those_of_float32() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = log_probs(logits)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.log_softmax(logits.float(), dim=-1))
    assert found.exp().sum(dim=-1).tolist() == pytest.approx([1.0] * 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_changes_no_token_of_clear_logits() -> None:
    logits = torch.randn(64, 50_000, generator=torch.Generator().manual_seed(1)) * 4
    sampling = Sampling(temperature=0.9, top_k=300, top_p=0.95)
    rows = [SampleRow(sampling, 3, 0, row) for row in range(64)]
    there, here = sample(logits.cuda(), rows), sample(logits, rows)
    assert sum(a != b for a, b in zip(there, here, strict=True)) <= 1  # exp may differ in its last bit
    alone = [sample(logits[nth : nth + 1].cuda(), [row])[0] for nth, row in enumerate(rows)]
    assert alone == there


def test_rows_of_a_table_in_any_order_and_in_parts() -> None:
    """SampleColumns of answers, taken by place, say what their rows say one by one; whatever stands beside them."""
    kinds = [Sampling(), *(Sampling(temperature=1.3, **fields) for fields in ({}, {"top_k": 4}, {"min_p": 0.1}))]
    kinds += [Sampling(temperature=1e-40, top_p=0.5), Sampling(temperature=0.9, top_p=0.3, top_k=2**31 - 1)]
    rules = TokenRules(Sampling(logit_bias={3: 5.0}), np.empty(0, np.int32), ())
    columns = SampleColumns(40)
    rows = [SampleRow(kinds[nth % 6], 2**64 - 1 - nth, nth % 3, 5 * nth) for nth in range(40)]
    for nth, row in enumerate(rows):
        columns.put(nth, row.sampling, row.seed, row.branch)
    logits = 3 * torch.randn(52, 300, generator=torch.Generator().manual_seed(4))
    places = np.random.default_rng(0).permutation(40)
    edited = [SampleRow(kinds[nth % 6], nth, 0, nth, rules if nth % 2 else None) for nth in range(12)]
    table = SampleTable(columns.take(places), 5 * places).then(SampleTable.of(edited))
    one_by_one = [rows[place] for place in places.tolist()] + edited
    assert choose(logits, table).tolist() == sample(logits, one_by_one)
    assert len(table) == 52 and sorted(table.edited) == list(range(41, 52, 2))
    assert [sample(logits[nth : nth + 1], [row]) for nth, row in enumerate(one_by_one)] == [
        [token] for token in sample(logits, one_by_one)
    ]
