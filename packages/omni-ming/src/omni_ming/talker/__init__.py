"""The Talker: utterances of text to latents of the audio VAE, four at a time."""
