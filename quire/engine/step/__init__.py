"""One step of an engine: who computes what, what the logits mean, answers that grow."""
