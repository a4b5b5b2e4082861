"""Stores of pages by name: the protocol, a folder, Redis."""
