"""Replies as text: tokens decoded, thoughts and calls told apart, grammars, chat templates."""
