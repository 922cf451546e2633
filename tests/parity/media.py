"""Images, sound and video of the parity cases, as real files made by integer arithmetic.

Integers throughout, so that every machine gets the same samples; lossless formats, so that every
decoder gives them back. Sizes are multiples of 32 pixels, rates are what the model takes: nothing
is resized or resampled on either side.
"""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image

SAMPLE_RATE_HZ = 16000
VIDEO_FPS = 2

Pixels = npt.NDArray[np.uint8]
Pcm = npt.NDArray[np.int16]


def picture(width: int = 160, height: int = 96, seed: int = 0) -> Pixels:
    """Noisy gradients, (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    gradients = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1)
    noise = np.random.default_rng(seed).integers(-16, 17, gradients.shape)
    return np.clip(gradients + noise, 0, 255).astype(np.uint8)


def frames(count: int = 8, width: int = 96, height: int = 64) -> Pixels:
    """Moving gradients, (count, height, width, 3)."""
    k, y, x = np.mgrid[0:count, 0:height, 0:width]
    channels = (3 * x + 20 * k, 4 * y + 9 * k, x + y + 30 * k)
    return (np.stack(channels, axis=-1) % 256).astype(np.uint8)


def sweep(seconds: int = 2, seed: int = 0) -> Pcm:
    """A rising triangle wave with some noise, mono."""
    sample = np.arange(seconds * SAMPLE_RATE_HZ, dtype=np.int64)
    hertz = 200 + 600 * sample // SAMPLE_RATE_HZ
    phase = np.cumsum(hertz * 65536 // SAMPLE_RATE_HZ) % 65536
    triangle = np.abs(phase - 32768) - 16384
    noise = np.random.default_rng(seed).integers(-600, 601, sample.size)
    return (triangle // 2 + noise).astype(np.int16)


def png(pixels: Pixels) -> bytes:
    """A PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def wav(samples: Pcm) -> bytes:
    """A 16-bit WAV file."""
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    return file.getvalue()


def matroska(pixels: Pixels, samples: Pcm) -> bytes:
    """A Matroska file: FFV1 in RGB at `VIDEO_FPS`, beside a 16-bit PCM sound track."""
    file = io.BytesIO()
    with av.open(file, mode="w", format="matroska") as container:
        video = container.add_stream("ffv1", rate=Fraction(VIDEO_FPS))
        video.width, video.height, video.pix_fmt = pixels.shape[2], pixels.shape[1], "bgr0"
        sound = container.add_stream("pcm_s16le", rate=SAMPLE_RATE_HZ, layout="mono")
        for image in pixels:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            container.mux(video.encode(frame.reformat(format="bgr0")))
        container.mux(video.encode(None))
        block = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        block.sample_rate = SAMPLE_RATE_HZ
        container.mux(sound.encode(block))
        container.mux(sound.encode(None))
    return file.getvalue()


def read_png(data: bytes) -> Pixels:
    """Decode `png`'s file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def read_wav(data: bytes) -> npt.NDArray[np.float32]:
    """Decode `wav`'s file to [-1, 1)."""
    samples, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32")
    assert rate_hz == SAMPLE_RATE_HZ
    return samples


def read_frames(data: bytes) -> Pixels:
    """Decode the pictures of `matroska`'s file."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def read_sound(data: bytes) -> npt.NDArray[np.float32]:
    """Decode the sound track of `matroska`'s file to [-1, 1)."""
    with av.open(io.BytesIO(data)) as container:
        blocks = [f.to_ndarray().reshape(-1) for f in container.decode(audio=0)]
    return np.concatenate(blocks).astype(np.float32) / 32768
