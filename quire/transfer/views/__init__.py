"""A cache as transfer sees it: our own, a plain one of block lists, one behind host memory."""
