"""OpenAI's endpoints, one file per family, and the pure functions between its JSON and Omni."""
