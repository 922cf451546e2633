"""From messages to token ids, positions and media arrays, equal to transformers' processor.

Needs no torchvision: pictures are resized by Pillow.
"""
