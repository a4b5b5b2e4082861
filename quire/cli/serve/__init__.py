"""quire serve: one server, or many workers behind one: what the command line says."""
