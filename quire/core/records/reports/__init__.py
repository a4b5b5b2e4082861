"""What a cache says of itself: counts, use of its memory, why tokens were missed."""
