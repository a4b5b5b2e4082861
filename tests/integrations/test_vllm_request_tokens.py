"""RequestTokens: each token of a request is read once, from vLLM's own list where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, overload

import numpy as np

from quire.integrations.vllm.common.request_tokens import MORE, RequestTokens


class Constant(Sequence[int]):
    """As vLLM shows its tokens: a slice of it is a list. Counts what was taken."""

    def __init__(self, items: list[int]) -> None:
        self.items, self.taken = items, 0

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        found = self.items[at]
        self.taken += len(found) if isinstance(found, list) else 1
        return found


def request(prompt: list[int], **more: Any) -> Any:
    items = list(prompt)
    shown = Constant(items)
    made = {"all_token_ids": shown, "prompt_token_ids": prompt, "num_tokens": len(items), "items": items}
    return SimpleNamespace(**made | more)


def test_a_prompt_is_read_from_its_list_and_what_is_generated_once() -> None:
    asked, text = request(list(range(1000))), RequestTokens()
    first = text.known(asked)
    assert first.tolist() == asked.items and asked.all_token_ids.taken == 0
    for new in range(5 * MORE):
        asked.items.append(70_000 + new)
        asked.num_tokens += 1
        if new % 7 == 0:
            assert text.known(asked).tolist() == asked.items
    assert text.known(asked).tolist() == asked.items and text.known(asked).dtype == np.int32
    assert asked.all_token_ids.taken == 5 * MORE  # each of them, once
    assert first.tolist() == list(range(1000))  # what was handed out stays as it was


def test_without_a_list_of_the_prompt_all_tokens_tell() -> None:
    for prompt in (None, (1, 2, 3), list(range(99))):  # the last is longer than what is known
        asked = request([5, 6, 7, 8], prompt_token_ids=prompt)
        assert RequestTokens().known(asked).tolist() == [5, 6, 7, 8]


def test_tokens_that_were_taken_back_are_read_again() -> None:
    asked, text = request([1, 2, 3, 4]), RequestTokens()
    text.known(asked)
    asked.num_tokens = 3
    assert text.known(asked).tolist() == [1, 2, 3]
    asked.items[3:] = [9, 10]
    asked.num_tokens = 5
    assert text.known(asked).tolist() == [1, 2, 3, 9, 10]
