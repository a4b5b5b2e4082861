"""Prompts of a log as rows of chunks: read, replayed, and what of them is lost. Knows no fault."""
