"""What prompts say, wherever it stands in them: chunks by content, and an index of those that were here."""
