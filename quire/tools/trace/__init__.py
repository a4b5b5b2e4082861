"""quire trace: from requests as they were logged to a trace that `quire replay` reads; what a trace says."""
