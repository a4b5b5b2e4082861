"""Where the pages of other engines lie: a disk, a shared store, or both. Knows no engine."""
