"""Classifiers on top of an encoder: linear probes and fine-tuning."""
