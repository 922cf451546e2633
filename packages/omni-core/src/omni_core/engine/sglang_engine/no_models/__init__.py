"""The models that upstream is told to look for when it is imported: none. See `bootstrap`."""
