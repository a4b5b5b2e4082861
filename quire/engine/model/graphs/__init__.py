"""Decoding steps in memory that stays where it is, captured as CUDA graphs."""
