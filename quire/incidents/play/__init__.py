"""Calls made again: exactly, loosely, or only looked at."""
