"""Tokens and the keys of their blocks."""
