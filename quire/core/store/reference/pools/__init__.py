"""What there is: slots in order, pages and their copies, rows, the log."""
