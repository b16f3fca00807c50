"""Metrics: pure functions of tensors."""
