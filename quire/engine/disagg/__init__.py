"""Prefill in one engine, decode in another: peers, their orders, and pages on the way."""
