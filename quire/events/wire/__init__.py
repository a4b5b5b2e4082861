"""Batches of events as bytes, and who may exchange them: encodings, frames, keys. Knows no threads."""
