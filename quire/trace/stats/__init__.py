"""What a trace says of itself: arrivals, lengths, sharing, turns, reuse, and what would raise it; in bounded memory."""
