"""The Thinker as a model of SGLang; imported only where that engine runs it."""
