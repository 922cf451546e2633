"""Requests across stages: their books, the sockets to the stages, and the stage processes."""
