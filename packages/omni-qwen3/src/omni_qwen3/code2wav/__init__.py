"""The vocoder of Qwen3-Omni: codec frames in, 24 kHz audio out."""
