"""Small worlds and what is asked in them, as plain data, and the bytes their pages hold."""
