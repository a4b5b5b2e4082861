"""Which warnings fail a test: our own, and what is left open or lost; not those of the libraries we stand on."""

from __future__ import annotations

import warnings

import pytest

from quire import ConfigWarning

TORCH = "mkldnn_matmul failed\nException raised from\n (Triggered internally at /pytorch/LinearAlgebra.cpp:1522.)"


def say(words: str, kind: type[Warning], module: str) -> None:
    """As if a line of `module` had warned."""
    warnings.warn_explicit(words, kind, "some.py", 1, module, registry={})


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        (UserWarning, "quire"),
        (RuntimeWarning, "quire.engine.sampling.sample"),
        (DeprecationWarning, "tests.core.sequences.test_life"),
        (ConfigWarning, "somebody"),
        (ResourceWarning, "asyncio.events"),
        (pytest.PytestUnraisableExceptionWarning, "_pytest.unraisableexception"),
        (pytest.PytestUnhandledThreadExceptionWarning, "_pytest.threadexception"),
    ],
)
def test_ours_are_errors(kind: type[Warning], module: str) -> None:
    with pytest.raises(kind, match="careful"):
        say("careful", kind, module)


@pytest.mark.parametrize(
    ("words", "kind", "module"),
    [
        ("careful", UserWarning, "torch.nn.functional"),
        ("careful", FutureWarning, "transformers.utils"),
        ("careful", RuntimeWarning, "quirement.parts"),
        (TORCH, UserWarning, "torch.nn.modules.linear"),
        (TORCH, UserWarning, "quire.engine.sampling.sample"),  # C++ code names whichever line of Python called it
    ],
)
def test_those_of_others_are_not(words: str, kind: type[Warning], module: str) -> None:
    with warnings.catch_warnings(record=True) as heard:
        say(words, kind, module)
    assert [one.category for one in heard] == [kind]


def test_a_coroutine_that_nobody_awaits_is_an_error() -> None:
    with pytest.raises(RuntimeWarning):
        say("coroutine 'Stream.close' was never awaited", RuntimeWarning, "sys")
