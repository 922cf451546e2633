"""Checkpoint directories: their small files, tokens and weights, read by who needs them."""
