"""Tests of the live page: its numbers, its server, and the page in a real browser."""
