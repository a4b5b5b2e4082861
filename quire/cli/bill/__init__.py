"""quire bill: what each tenant used, as a table, as CSV, as JSON or as a page."""
