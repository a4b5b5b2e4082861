"""The manifest: a log of which page lies in which slot."""
