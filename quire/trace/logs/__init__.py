"""Logs of requests made into a trace."""
