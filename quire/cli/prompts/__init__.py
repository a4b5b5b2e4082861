"""quire findings, quire lint and quire diff: what prompts share, and why not more."""
