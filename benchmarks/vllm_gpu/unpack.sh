#!/bin/bash
# bash unpack.sh: takes the piece beside this file into $KIT (default: ~/quire-kit). Once per carried piece, in any order.
# With pieces 1 and 2 there everything is set up and checked; it can be repeated.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export KIT=${KIT:-$HOME/quire-kit}
mkdir -p "$KIT/raw" "$KIT/quire"
for piece in "$here"/piece*.tar; do
    tar -xf "$piece" -C "$KIT/raw"
    echo "unpacked $(basename "$piece")"
done
for needed in quire.tar.xz _C_stable_libtorch.abi3.so.xz; do
    [ -f "$KIT/raw/$needed" ] || { echo "waiting for the piece with $needed"; exit 0; }
done
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' "$KIT/raw/quire.tar.xz" "$KIT/quire"
. "$KIT/quire/benchmarks/vllm_gpu/env.sh"
python3 -m benchmarks.vllm_gpu.setup_kit
if python3 -m benchmarks.vllm_gpu.check; then
    echo "CHECK ok"
elif [ -f "$KIT/raw/_vllm_fa3_C.abi3.so.deflate" ]; then
    echo "CHECK FAILED"
    exit 1
else
    echo "CHECK FAILED: right, if it was at FlashAttention, which piece 3 brings"
fi
