"""A tokenizer for the tiny models: every byte is a token, so that most of what they say falls apart into characters."""

from __future__ import annotations

from typing import Any

TALK = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}a:"  # a conversation, in few tokens


def byte_tokenizer() -> Any:
    """256 tokens, none of them special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: nth for nth, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner)
    made.chat_template = TALK
    return made
