"""The museum: faults that others have reported in public, re-enacted here in our own words.

A case is named after its report. It makes the state that breaks the others, and says what must hold here; there is a
line for each in docs/museum.md.
"""
