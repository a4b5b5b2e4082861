"""Folders: what is read of a folder with a model in transformers' format. Nothing in it is run, nothing is fetched.

config.json, *.safetensors, tokenizer files     read
*.py named by a config (auto_map)               never: it would run a stranger's code
*.bin, *.pt and other pickled weights           refused, with the way to convert them
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath

from quire.core.records.errors import InputError, say, shown
from quire.engine.model.hub_cache import cache_folder, is_hub_id, snapshot_of

SAFE = ".safetensors"
INDEX = f"{SAFE}.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
CONVERT = (
    "convert it where you would run its author's programs: from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(folder).save_pretrained(another)"
)


def checked(folder: str | Path) -> Path:
    """The folder, or that of a downloaded model named as on the hub: with a config, and no weights but safe ones."""
    try:
        place = Path(folder)
        has_config, exists = (place / "config.json").is_file(), place.exists()
    except (TypeError, ValueError, OSError):  # no path at all, or one that no file can have
        raise wrong_model(folder, "that is not a path of a folder", "name a folder with a model") from None
    if folder == "":  # a Path of it is the current folder
        raise wrong_model(folder, "that names no folder", "name a folder with a model")
    if is_hub_id(folder) and not exists:
        place = _downloaded(str(folder))
    elif not has_config:
        raise wrong_model(folder, "there is no config.json in it", "name a folder with a model")
    named = _named_weights(place)
    if outside := [one for one in named if not _is_plain_name(one)]:
        fact = f"it names weights that are not files of this folder: {shown(outside[0])}"
        raise wrong_model(folder, fact, "name a folder with all of its weights in it")
    if strange := [one for one in named if not one.endswith((SAFE, INDEX))] or _pickled(place):
        fact = f"{strange[0]} holds pickled weights, and to load such a file is to run what is in it"
        raise wrong_model(folder, fact, CONVERT)
    return place


def _downloaded(name: str) -> Path:
    place = snapshot_of(name)
    if place is None:
        fact = f"there is no such folder, and the hub cache {cache_folder()} has no such model"
    elif (place / "config.json").is_file() and (_pickled(place) or _has_whole_weights(place)):
        return place
    else:
        fact = "the hub cache has only a part of it"
    raise InputError(say(f"model {name!r}", fact, f"run: hf download {name}"))


def _pickled(place: Path) -> list[str]:
    """Files with pickled weights, if it has no safe ones."""
    if any(place.glob(f"*{SAFE}")):
        return []
    return sorted(one.name for one in place.iterdir() if one.suffix in PICKLED)


def _has_whole_weights(place: Path) -> bool:
    """Whether the weights that would be read are all there, each to its end; names that are refused are not opened."""
    from safetensors import SafetensorError, safe_open

    usual = f"model{SAFE}" if (place / f"model{SAFE}").is_file() else f"model{INDEX}"
    first = _own_weights(place) or usual
    try:
        names = _shards(place, place / first) if _is_plain_name(first) and first.endswith(INDEX) else [first]
        for name in sorted(set(names)):
            if _is_plain_name(name) and name.endswith(SAFE):
                with safe_open(place / name, "np"):  # reads what it holds, and whether the file is as long as that
                    pass
    except (InputError, SafetensorError, OSError):  # no index, a link that leads nowhere, a file that was cut off
        return False
    return True


def _own_weights(place: Path) -> str | None:
    """The file that the config names in place of the usual ones."""
    try:
        own = json.loads((place / "config.json").read_bytes()).get("transformers_weights")
    except (OSError, ValueError, AttributeError, RecursionError):  # no config: who loads it says so
        return None
    return None if own is None else str(own)


def _named_weights(place: Path) -> list[str]:
    """Files that indexes of split weights name, and the one that the config names."""
    named = [name for index in sorted(place.glob(f"*{INDEX}")) if index.is_file() for name in _shards(place, index)]
    own = _own_weights(place)
    return named if own is None else [*named, own]


def _shards(place: Path, index: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads(index.read_bytes())["weight_map"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise wrong_model(
            place, f"{index.name} is not an index of weights", "name a folder with a whole model"
        ) from None


def _is_plain_name(name: str) -> bool:
    """Whether it names a file in its folder on every system. The file may be a link, as those in a hub cache are."""
    return name not in ("", ".", "..") and PurePosixPath(name).name == name == PureWindowsPath(name).name


def first_line(wrong: BaseException) -> str:
    """What it is, and the first line of what it says, not too long."""
    return f"{type(wrong).__name__}: {(str(wrong).strip().splitlines() or [''])[0][:300]}"


def wrong_model(folder: object, fact: str, cure: str) -> InputError:
    """The error about a folder that is not a model."""
    name = str(folder) if isinstance(folder, Path) else folder
    return InputError(say(f"model {name!r}", fact, cure))
