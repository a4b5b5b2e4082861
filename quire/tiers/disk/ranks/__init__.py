"""A disk of several ranks: each keeps its part of every page in files of its own, one process knows what lies where."""
