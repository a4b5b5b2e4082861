"""What would be released: built, looked into, installed where nothing else is, and run (`make release`)."""
