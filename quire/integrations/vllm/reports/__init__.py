"""What the connector tells of itself: counts, metrics, events, recordings."""
