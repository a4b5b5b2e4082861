"""Networking that events, transfer, the server and the live page share. Knows none of them.

hosts, address, lookup: where a peer is.
tls, hmac_authentication, secrets, curve_keys: which peers are let in; tls and curve_keys encrypt too.
limits: how many connections may be open, and which one is closed for a new one.
"""
