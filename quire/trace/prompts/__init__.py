"""Prompts of logs of requests: read line by line, rendered, made into token ids."""
