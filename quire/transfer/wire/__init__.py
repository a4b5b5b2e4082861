"""What two peers tell each other, as bytes of one version: layouts, messages, verdicts."""
