"""One address in front of many workers. Whole workers: the stages of a request are never split.

Imports nothing of the other packages and names no model: what a worker can do, it says itself.
"""

__version__ = "0.1.0"
