"""OpenAI-compatible HTTP in front of an Omni pipeline, and the `omni` command.

A client of `omni_core.pipeline` and of nothing below it; knows no model.
"""
