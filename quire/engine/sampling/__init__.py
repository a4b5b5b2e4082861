"""Which token comes next: what a user asks of it, and from logits to tokens. Knows no runs and no steps."""
