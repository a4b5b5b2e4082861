"""What kernels share: how Triton comes to them, and numbers rounded to the dtype of the model. Knows no kernel.

Triton is imported by the first launch: a module with kernels needs neither it nor a GPU. The compiler looks up names in
the module where a kernel stands, so `bring` puts them there. In Triton's interpreter (TRITON_INTERPRET=1) kernels run
on the CPU in NumPy, which has no bfloat16: it is rounded by hand there, and products take it widened.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from quire.core.records.errors import InputError, MissingExtra, say

INTERPRETED_PROCESSORS = 4  # as many as an interpreter pretends to have

tl: Any = None  # triton.language, once it was imported
rounded: Any = None
if TYPE_CHECKING:  # and these two, which the compiler finds in annotations
    from typing import Any as constexpr
    from typing import Any as tensor


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def bring(names: dict[str, Any]) -> Any:
    """Triton; its language and the functions below get into a module's `names`."""
    names.update(_shared())
    return import_module("triton")


def check_place(tensor: torch.Tensor) -> None:
    """Refuse a tensor that a kernel cannot read."""
    if not tensor.is_cuda and not interpreted():
        raise InputError(say("a kernel in Triton", f"its input is on {tensor.device}", "use the CPU path there"))


@cache
def processors(device: torch.device) -> int:
    """How many programs a device runs at once, each on a processor of its own."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def power(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, number - 1).bit_length()


def odd(number: int) -> int:
    """A number as kernels take it that comes in any size: they halve it. Triton compiles a kernel again for a 1 and for
    multiples of 16, which this never is."""
    return 2 * number + 1


@cache
def _shared() -> dict[str, Any]:
    try:
        triton = import_module("triton")
        language = import_module("triton.language")
    except ImportError as missing:
        cure = "install triton (the CUDA builds of torch bring it), or use the CPU path"
        raise MissingExtra(say("a kernel in Triton", f"Triton is not there ({missing})", cure)) from missing
    globals().update(tl=language, constexpr=language.constexpr, tensor=language.tensor)
    # The language's own exponential is a quick one, and its cosine is for small angles; torch takes those of libdevice.
    precise = language if interpreted() else import_module("triton.language.extra.libdevice")
    shared = {"tl": language, "constexpr": language.constexpr, "tensor": language.tensor, "precise": precise}
    globals().update(rounded=triton.jit(_rounded))
    some = {"multiply": _multiply, "normed": _normed, "turned": _turned}
    return shared | {"rounded": rounded} | {name: triton.jit(function) for name, function in some.items()}


def _rounded(x: tensor, dtype: constexpr, by_hand: constexpr) -> Any:
    """A float32 as the nearest number of a dtype, still in float32; ties go to the even one."""
    if by_hand and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True)
    return x.to(dtype).to(tl.float32)


def _multiply(a: tensor, b: tensor, onto: tensor, by_hand: constexpr) -> Any:
    """onto + a @ b; sums are float32, and so are the products of float32."""
    if by_hand:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), onto, input_precision="ieee")
    return tl.dot(a, b, onto, input_precision="ieee")


def _turned(low: tensor, high: tensor, cosines: tensor, sines: tensor, dtype: constexpr, shape: constexpr) -> Any:
    """Both halves of some heads, turned by their angles."""
    right, left = rounded(low * cosines, dtype, shape.by_hand), rounded(high * sines, dtype, shape.by_hand)
    up, down = rounded(high * cosines, dtype, shape.by_hand), rounded(low * sines, dtype, shape.by_hand)
    return rounded(right - left, dtype, shape.by_hand), rounded(up + down, dtype, shape.by_hand)


def _normed(low: tensor, high: tensor, at: tensor, inside: tensor, dtype: constexpr, shape: constexpr) -> Any:
    """Both halves of some heads, normed; their weights lie at `at`."""
    mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * shape.half)
    factor = tl.rsqrt(mean + shape.eps)[:, None]
    low, high = low * factor, high * factor
    if shape.norm == 1:
        low, high = rounded(low, dtype, shape.by_hand), rounded(high, dtype, shape.by_hand)
    low = low * tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = high * tl.load(at + shape.half, mask=inside, other=0.0).to(tl.float32)
    return rounded(low, dtype, shape.by_hand), rounded(high, dtype, shape.by_hand)
