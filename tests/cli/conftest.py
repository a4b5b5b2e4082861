"""What tests of more than one tool take: a model that talks, and standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model that talks nonsense and never comes to an end."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from ..engine import families
    from ..engine.words import byte_tokenizer

    config = families.config_of("llama")
    config.eos_token_id, config.max_position_embeddings = None, 8192
    torch.manual_seed(5)
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    place = tmp_path_factory.mktemp("model")
    module.save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return str(place)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Standard input."""
    return lambda lines: monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
