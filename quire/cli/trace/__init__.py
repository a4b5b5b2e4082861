"""`quire trace make` and `quire trace stats`: the commands of quire.trace."""
