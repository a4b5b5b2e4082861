"""The form of an answer: what a user asks, the grammar that allows it token by token. Knows no runs and no steps."""
