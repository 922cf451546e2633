"""Voices by name: those of the checkpoint, and those that clients upload."""
