"""Connections of a server: HTTP with bounds on heads, and on how many are open. Knows no requests."""
