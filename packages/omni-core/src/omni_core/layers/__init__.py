"""Layers that model packages build decoders and towers of."""
