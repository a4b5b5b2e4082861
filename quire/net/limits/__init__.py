"""How many connections may be open, and which one goes when one more comes: a server's, a link's, a ZMQ socket's."""
