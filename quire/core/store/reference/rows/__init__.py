"""The life of a row, from its seat to its release."""
