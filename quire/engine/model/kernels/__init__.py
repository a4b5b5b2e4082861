"""Kernels of the engine's own forward, in Triton: attention over pages, and what stands between two matrix products.

decoding.py  attention of one token per row, its context split over programs
prompt.py    attention of many tokens per row
heads.py     angles of positions; norm and turn of Q and K, and K and V into their pages
norms.py     sums and norms between two parts of a layer
gates.py     the gated activation
plain.py     all of them in torch, with the same signatures: what runs on the CPU, and what tests compare with

Launches depend on shapes only, never on what a tensor holds: they can be captured in a CUDA graph.
"""
