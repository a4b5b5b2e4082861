"""Recurrent states under vLLM, with a toy engine that keeps them as vLLM does."""
