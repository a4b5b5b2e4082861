"""Quire inside other engines: contract tests that need none of them, and runners that need the engine itself."""
