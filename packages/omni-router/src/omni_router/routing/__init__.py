"""Which worker gets a request: pure functions over loads and names."""
