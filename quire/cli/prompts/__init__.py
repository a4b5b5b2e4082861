"""quire findings and quire diff: what the prompts of a log share, and why not more."""
