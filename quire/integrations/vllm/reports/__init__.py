"""What the connector reports: counts, metrics, events, recordings."""
