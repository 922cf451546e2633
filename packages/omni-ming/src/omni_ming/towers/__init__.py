"""The encoders' networks: pictures and sound to rows of the Thinker."""
