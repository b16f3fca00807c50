"""Evaluation: one file a protocol, metrics as pure functions, one suite that runs them."""
