"""What events, transfer, the server and the live page have in common where strangers connect. Knows none of them.

hosts, address, lookup: who is where. tls, seal, secrets, curve_keys: who is let in, and what others can read.
limits: how many connections may be open, and which one goes when one more comes.
"""
