"""Tensors: how numbers reach a device. Knows no model."""
