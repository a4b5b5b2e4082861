"""Tests of quire.insight."""
