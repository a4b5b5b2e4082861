"""What one cache owns between two calls: stores, roots, sequences, claims, plans. Decides nothing."""
