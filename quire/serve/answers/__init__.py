"""What clients get: answers as OpenAI's clients know them, whole or as events. Knows no engine but its pieces."""
