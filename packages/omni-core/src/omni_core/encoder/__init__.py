"""Encoder stages: towers behind a cache, within a budget of memory."""
