"""What a replay showed, for people: words, tables, plots, one page."""
