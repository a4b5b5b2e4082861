"""What clients may ask: the types of bodies, their bounds, and what becomes of each field. Knows no HTTP.

parts, bodies, uses         the types, and what becomes of each field
extent, decode, raw_parts   from bytes to fields: counted first, then decoded, raw parts when they are needed
faults                      what is wrong with a value, in words
to_sampling, openapi        what becomes of it
"""
