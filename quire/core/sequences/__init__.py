"""What happens to a sequence after it was admitted: commit, grow, trim, fork, release, and moves that failed."""
