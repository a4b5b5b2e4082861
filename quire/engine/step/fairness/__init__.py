"""Fairness between tenants, whose turn it is: the rounds in which tenants compute, and the seats that they share."""
