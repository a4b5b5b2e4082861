"""How stores are called: deadlines, a breaker, threads, counters, quotas."""
