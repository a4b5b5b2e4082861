"""Limits of open connections: of a server, of a link, of a ZMQ socket; and which one is closed for a new one."""
