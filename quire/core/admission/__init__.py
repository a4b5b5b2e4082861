"""From a request to a sequence in two phases: prepare, claim, count, admit."""
