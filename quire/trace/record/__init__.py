"""Traces as they are written: blocks under a secret key, lines with a header and an end mark, files that are whole."""
