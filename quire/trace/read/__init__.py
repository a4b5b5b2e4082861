"""A recorded workload: files, lines, prompts made of parts, token ids when they are needed."""
