"""Tests of the server: real HTTP over loopback, a tiny model, one server per module."""
