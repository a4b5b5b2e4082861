"""Do the parts load, and do two of vLLM's kernels answer right? Ends with an error at the first that does not."""

from __future__ import annotations

import subprocess

import torch
import vllm
import vllm._C_stable_libtorch

LOOK = "nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv; df -h /dev/shm; free -g | head -2; nproc"


def kernels() -> None:
    """One that computes and one that copies."""
    x = torch.randn(4, 256, device="cuda", dtype=torch.bfloat16)
    weight, y = torch.ones(256, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
    torch.ops._C.rms_norm(y, x, weight, 1e-5)
    wanted = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    print("rms_norm is off by", (y.float() - wanted).abs().max().item())
    host, device = torch.arange(4096).pin_memory(), torch.zeros(4096, dtype=torch.int64, device="cuda")
    source, target, size = (torch.tensor([one]) for one in (host.data_ptr(), device.data_ptr(), host.nbytes))
    torch.ops._C_cache_ops.swap_blocks_batch(source, target, size, False)
    torch.cuda.synchronize()
    print("swap_blocks_batch copies:", bool((device.cpu() == host).all()))


def main() -> None:
    print(subprocess.run(LOOK, shell=True, capture_output=True, text=True, check=False).stdout)
    print("torch", torch.__version__, "vllm", vllm.__version__, vllm.__file__)
    kernels()
    import quire  # what is vLLM's alone comes first
    from quire.integrations.vllm import QuireConnector

    print("quire", quire.__version__, QuireConnector.__name__)
    from vllm.vllm_flash_attn import flash_attn_interface  # last: it needs piece 3

    print("FlashAttention 3:", flash_attn_interface.FA3_AVAILABLE, flash_attn_interface.FA3_UNAVAILABLE_REASON or "")


if __name__ == "__main__":
    main()
