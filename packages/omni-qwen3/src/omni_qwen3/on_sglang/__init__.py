"""Thinker and Talker as models of SGLang; imported only where that engine runs them."""
