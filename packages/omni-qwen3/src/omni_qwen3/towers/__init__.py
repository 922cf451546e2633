"""The vision and audio towers, in plain torch: rows of pixels or mel frames in, embeddings out."""
