"""A forward of our own for Llama-like decoders, in few and static operations. Other models run transformers' code."""
