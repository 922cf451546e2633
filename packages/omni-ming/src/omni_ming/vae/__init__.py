"""AudioVAE: latents of 12.5 Hz to sound at 44.1 kHz and back."""
