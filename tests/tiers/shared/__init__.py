"""Tests of stores that machines share."""
