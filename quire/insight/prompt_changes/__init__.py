"""A few prompts, and a change of them: what keeps them from sharing, and what the change costs."""
