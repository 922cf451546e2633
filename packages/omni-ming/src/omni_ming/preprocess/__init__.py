"""Messages to prompts: token ids with positions, and arrays for the encoders."""
