"""Weights as flat vectors: sums, updates, spans that stay local."""
