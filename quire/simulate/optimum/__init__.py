"""The offline optimum: what a cache could have hit at best, had it known the trace. Knows no cache."""
