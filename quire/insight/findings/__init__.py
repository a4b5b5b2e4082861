"""Findings: what keeps the prompts of a log from sharing more, and what mending it would bring."""
