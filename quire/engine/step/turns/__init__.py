"""Whose turn it is: tenants, the rounds in which they compute, and the seats that they share."""
