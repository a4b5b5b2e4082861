"""Folders: what is read of a folder with a model in transformers' format. Nothing in it is run, nothing is fetched.

config.json, *.safetensors, tokenizer files     read
*.py named by a config (auto_map)               never: it would be somebody's program
*.bin, *.pt and other pickled weights           refused, with the way to convert them
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from quire.core.records.errors import InputError, say
from quire.engine.model.quiet import quiet

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # said, or transformers would ask
SAFE = ".safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WORDS = ("tokenizer.json", "tokenizer.model", "vocab.json")
CONVERT = (
    "convert it where you would run its author's programs: from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(folder).save_pretrained(another)"
)


def checked(folder: str | Path) -> Path:
    """The folder, which has a config and no weights but safe ones."""
    try:
        place = Path(folder)
        has_config = (place / "config.json").is_file()
    except (TypeError, ValueError, OSError):  # no path at all, or one that no file can have
        raise _wrong(folder, "that is no path of a folder", "name a folder with a model") from None
    if not has_config:
        raise _wrong(folder, "there is no config.json in it", "name a folder with a model")
    strange = [one for one in _shards(place) if not one.endswith(SAFE)]
    if not strange and not any(place.glob(f"*{SAFE}")):
        strange = sorted(one.name for one in place.iterdir() if one.suffix in PICKLED)
    if strange:
        fact = f"{strange[0]} holds pickled weights, and to load such a file is to run what is in it"
        raise _wrong(folder, fact, CONVERT)
    return place


def read(place: Path, kind: torch.dtype) -> tuple[Any, Any]:
    """Its decoder, and its tokenizer if it has one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet():
            module = AutoModelForCausalLM.from_pretrained(place, dtype=kind, use_safetensors=True, **LOCAL)
            has_words = any((place / name).is_file() for name in WORDS)
            tokenizer = AutoTokenizer.from_pretrained(place, **LOCAL) if has_words else None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as wrong:  # tokenizers panic at some files, which is no Exception
        if "trust_remote_code" in str(wrong):
            fact = "it brings Python code of its own, and Quire runs none"
            raise _wrong(place, fact, "use a model that transformers itself knows") from None
        fact = f"transformers cannot load it: {first_line(wrong)}"
        raise _wrong(place, fact, "name a folder with a whole model") from wrong
    return module, tokenizer


def _shards(place: Path) -> list[str]:
    """Files that an index of split weights names."""
    index = place / f"model{SAFE}.index.json"
    if not index.is_file():
        return []
    try:
        return [str(name) for name in json.loads(index.read_bytes())["weight_map"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _wrong(place, f"{index.name} is no index of weights", "name a folder with a whole model") from None


def first_line(wrong: BaseException) -> str:
    """What it is, and the first line of what it says, not too long."""
    return f"{type(wrong).__name__}: {(str(wrong).strip().splitlines() or [''])[0][:300]}"


def _wrong(folder: object, fact: str, cure: str) -> InputError:
    name = str(folder) if isinstance(folder, Path) else folder
    return InputError(say(f"model {name!r}", fact, cure))
