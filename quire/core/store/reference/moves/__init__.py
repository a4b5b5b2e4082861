"""Pages take places and lose them: in the tree, in the tiers, in the columns of a row."""
