"""What happens to a sequence after it was admitted: commit, grow, fork, hold, release, failed moves."""
