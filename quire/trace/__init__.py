"""Traces: recorded while something serves, made from logs, read, counted. Text and tokens are not in them.

Each imports those before it: record (blocks under a secret key, lines, whole files), read (a trace and its tokens),
then logs (requests that others logged, made into a trace) and stats (what a trace says).
"""
