"""What was asked as the engine takes it: prompts as token ids, and what tools come to."""
