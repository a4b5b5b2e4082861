"""Loading: from a folder, or from a transformers decoder in memory, to a model that reads pages. Nothing is fetched.

    folder --transformers--> decoder, tokenizer --attention and recurrent layers over pages--> Model

Knows no cache and no steps.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch

from quire.core.records.errors import InputError, say, shown
from quire.engine.model import attention, recurrent
from quire.engine.model.folders import TOKENIZER_FILES, checked, first_line, wrong_model
from quire.engine.model.forward.families import decoder_of
from quire.engine.model.forward.parts import Unfit
from quire.engine.model.layers import Model, places_of, shapes_of
from quire.engine.model.weights_to_device import weights_to_device

if TYPE_CHECKING:
    from quire.engine.model.forward.decoder import Decoder
    from quire.engine.model.kernels.choice import Kernels

if TYPE_CHECKING:  # on a CPU they are not imported
    from quire.engine.model.forward.decoder import Decoder
    from quire.engine.model.kernels.choice import Kernels

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # said, or transformers would ask
FORWARDS = ("auto", "own", "transformers")
_ONE_AT_A_TIME = RLock()  # what is silenced belongs to the whole process: two at once would put back each other's
_log = logging.getLogger("quire.engine")


def load(
    folder: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    share_pool: bool = True,
    forward: str = "auto",
) -> Model:
    """A decoder and its tokenizer from a local folder in transformers' format. Nothing in it is run as code.

    `share_pool`: layers with full attention and with windows have their pages in one pool (Gemma-3).
    `forward`: as of `from_module`.
    """
    place = checked(folder)
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InputError(say(f"dtype {dtype!r}", "it is not a floating point type of torch", "use float32 or bfloat16"))
    module, tokenizer = _read(place, kind)
    model = replace(
        from_module(weights_to_device(module, device), tokenizer, share_pool=share_pool, forward=forward), folder=place
    )
    _log.info("loaded %s: %r", place, model)
    return model


def outline(folder: str | Path, *, dtype: str = "float32", share_pool: bool = True) -> Model | None:
    """What `load` would make, without its weights, which takes a moment; None: only `load` can say what is wrong."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        place, kind = checked(folder), getattr(torch, dtype)
        with quiet_transformers(), torch.device("meta"):
            config = AutoConfig.from_pretrained(place, **LOCAL)
            module = AutoModelForCausalLM.from_config(config, dtype=kind)
        return replace(from_module(module, share_pool=share_pool, forward="transformers"), folder=place)
    except Exception:
        return None


def from_module(module: Any, tokenizer: Any = None, *, share_pool: bool = True, forward: str = "auto") -> Model:
    """Around a transformers decoder in memory. From now on it reads pages: use it through an engine only.

    `forward`: "own" runs Quire's code over its weights, which it then shares; "transformers" runs transformers' code;
    "auto" is "own" for the families that have it.
    """
    config = module.config.get_text_config()
    if any(hasattr(part, "sinks") for part in module.modules()):
        fact = "its attention has learned sinks, which the engine has not"
        raise InputError(say(f"model type {config.model_type!r}", fact, "use another model"))
    if type(share_pool) is not bool:
        raise InputError(say(f"share_pool {shown(share_pool)}", "it is on or off", "pass True or False"))
    shapes = shapes_of(module, share_pool)
    attention.install(module)
    recurrent.install(module)
    module.eval()
    eos = getattr(module.generation_config, "eos_token_id", None)
    eos_ids = frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)
    length = int(config.max_position_embeddings)
    return Model(module, shapes, places_of(shapes), eos_ids, length, _forward(module, forward), tokenizer)


def _forward(module: Any, wanted: str) -> Callable[[Any], Any]:
    """What runs a step."""
    if wanted not in FORWARDS:
        raise InputError(
            say(f"forward {shown(wanted)}", "it is not a way to run a model", f"pass one of {', '.join(FORWARDS)}")
        )
    theirs = attention.TransformersForward(module)
    if wanted != "transformers":
        try:
            decoder = decoder_of(module)
            return attention.OwnForward(decoder, theirs, _kernels(decoder))
        except Unfit as why:
            if wanted == "own":
                raise InputError(say("forward 'own'", str(why), "pass forward='transformers'")) from why
            _log.debug("transformers' own code runs %s: %s", type(module).__name__, why)
    return theirs


def _kernels(decoder: Decoder) -> Kernels | None:
    """What the decoder runs on; None: torch's operations, one by one."""
    if decoder.embeddings.device.type == "cpu":
        return None
    from quire.engine.model.kernels.choice import kernels_for
    from quire.engine.model.kernels.fused import fits

    return kernels_for(decoder.embeddings.device) if fits(decoder) else None


def _read(place: Path, kind: torch.dtype) -> tuple[Any, Any]:
    """Its decoder, and its tokenizer if it has one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # takes a second to import

    try:
        with quiet_transformers():
            module = AutoModelForCausalLM.from_pretrained(place, dtype=kind, use_safetensors=True, **LOCAL)
            has_tokenizer = any((place / name).is_file() for name in TOKENIZER_FILES)
            tokenizer = AutoTokenizer.from_pretrained(place, **LOCAL) if has_tokenizer else None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as wrong:  # tokenizers panic at some files, which is not an Exception
        if "trust_remote_code" in str(wrong):
            fact = "it brings Python code of its own, and Quire runs none"
            raise wrong_model(place, fact, "use a model that transformers itself knows") from None
        fact = f"transformers cannot load it: {first_line(wrong)}"
        raise wrong_model(place, fact, "name a folder with a whole model") from wrong
    return module, tokenizer


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without progress bars and notes while a model is made, loaded or converted. Errors still come, as exceptions."""
    from transformers.utils import logging as notes

    with _ONE_AT_A_TIME:
        level = notes.get_verbosity()
        notes.set_verbosity_error()
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # some bars heed no switch
                yield
        finally:
            notes.set_verbosity(level)
