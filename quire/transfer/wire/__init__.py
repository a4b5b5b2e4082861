"""What two peers send each other, as bytes of one version: layouts, messages, verdicts."""
