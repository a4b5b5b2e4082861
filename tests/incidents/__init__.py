"""Incidents: recorded, written, played again."""
