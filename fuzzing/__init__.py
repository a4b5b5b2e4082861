"""The fuzzer: random calls on a real cache with real bytes, compared with an oracle that answers by definition.

Not part of what is installed: `python -m fuzzing` in a checkout, or `make fuzz`.
"""
