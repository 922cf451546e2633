"""One small valid file for every format the loaders accept, to be damaged by `mutate`.

Knows encoders. Knows nothing of damage or of how the loaders are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, TypeAlias

import av
import av.codec
import numpy as np
import soundfile
from PIL import Image

Kind: TypeAlias = Literal["image", "audio", "video"]

RATE = 16_000
SIDE = 96
FRAMES = 8

SOUND_FILES = (
    ("WAV", "PCM_U8"), ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "ULAW"),
    ("WAV", "IMA_ADPCM"), ("WAV", "GSM610"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
    ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"), ("AU", "ALAW"),
    ("CAF", "ALAC_16"), ("W64", "PCM_16"), ("RF64", "PCM_16"),
)  # fmt: skip
SOUND_TRACKS = (
    ("mp4", "aac"), ("webm", "libopus"), ("matroska", "flac"), ("adts", "aac"), ("ac3", "ac3"),
    ("eac3", "eac3"), ("asf", "wmav2"), ("flv", "libmp3lame"), ("mpegts", "mp2"), ("mov", "alac"),
    ("amr", "libopencore_amrnb"), ("avi", "pcm_s16le"),
)  # fmt: skip
PICTURES = (
    ("mp4", "libx264", "yuv420p"), ("mp4", "mpeg4", "yuv420p"), ("mp4", "libx265", "yuv420p"),
    ("matroska", "ffv1", "yuv420p"), ("matroska", "libx264", "yuv444p"),
    ("webm", "libvpx", "yuv420p"), ("webm", "libvpx-vp9", "yuv420p"),
    ("webm", "libsvtav1", "yuv420p"),
    ("avi", "mjpeg", "yuvj420p"), ("avi", "msmpeg4", "yuv420p"), ("avi", "huffyuv", "yuv422p"),
    ("avi", "rawvideo", "bgr24"), ("asf", "wmv2", "yuv420p"), ("flv", "flv", "yuv420p"),
    ("mpegts", "mpeg2video", "yuv420p"), ("mpeg", "mpeg1video", "yuv420p"),
    ("mov", "prores_ks", "yuv422p10le"), ("mov", "qtrle", "rgb24"), ("mov", "png", "rgb24"),
    ("gif", "gif", "rgb8"), ("apng", "apng", "rgb24"), ("ogg", "libtheora", "yuv420p"),
)  # fmt: skip
"""Container, codec and pixel format. Encoders this machine's FFmpeg lacks are passed over."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid file."""

    kind: Kind
    name: str
    data: bytes


def seeds() -> list[Seed]:
    """All of them, always in the same order."""
    return [*_images(), *_sounds(), *_videos()]


def _picture(mode: str = "RGB") -> Image.Image:
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.uint8)
    return Image.fromarray(np.stack([5 * x, 3 * y, x ^ y], axis=-1)).convert(mode)


def _images() -> Iterator[Seed]:
    wanted: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("PNG", "RGB", {}), ("PNG", "RGBA", {}), ("PNG", "P", {}), ("PNG", "1", {}),
        ("JPEG", "RGB", {"exif": _exif()}), ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "CMYK", {}), ("JPEG", "L", {}), ("WEBP", "RGB", {}),
        ("WEBP", "RGBA", {"lossless": True}), ("GIF", "P", {}), ("BMP", "RGB", {}),
        ("BMP", "P", {}), ("TIFF", "RGB", {}), ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "RGB", {"compression": "jpeg"}), ("TIFF", "1", {"compression": "group4"}),
        ("TIFF", "RGB", {"compression": "tiff_adobe_deflate"}), ("AVIF", "RGB", {}),
        ("PNG", "RGB", {"save_all": True}), ("GIF", "P", {"save_all": True}),
        ("WEBP", "RGB", {"save_all": True}), ("TIFF", "RGB", {"save_all": True}),
    )  # fmt: skip
    for fmt, mode, options in wanted:
        file = BytesIO()
        picture = _picture(mode)
        more = [picture.rotate(90), picture.rotate(180)] if "save_all" in options else []
        extra = {"append_images": more} if more else {}
        picture.save(file, format=fmt, **options, **extra)
        yield Seed("image", f"{fmt} {mode} {' '.join(options)}".strip(), file.getvalue())


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _tone() -> np.ndarray[Any, np.dtype[np.float32]]:
    return (np.sin(np.arange(RATE // 2) / 7) * 0.5).astype(np.float32)


def _sounds() -> Iterator[Seed]:
    for container, subtype in SOUND_FILES:
        file = BytesIO()
        soundfile.write(file, _tone(), RATE, format=container, subtype=subtype)
        yield Seed("audio", f"{container} {subtype}", file.getvalue())
    for container, codec in SOUND_TRACKS:
        if codec in av.codecs_available:
            yield Seed("audio", f"{container} {codec}", _muxed(container, None, codec))


def _videos() -> Iterator[Seed]:
    silent = {"gif", "apng", "ogg"}
    for container, codec, pix_fmt in PICTURES:
        if codec in av.codecs_available:
            sound = None if container in silent else _sound_for(container)
            data = _muxed(container, (codec, pix_fmt), sound)
            yield Seed("video", f"{container} {codec}", data)


def _sound_for(container: str) -> str:
    special = {"webm": "libopus", "mpeg": "mp2", "avi": "pcm_s16le", "asf": "wmav2"}
    return special.get(container, "aac")


def _muxed(container: str, picture: tuple[str, str] | None, sound: str | None) -> bytes:
    """A file with the given tracks, half a second long."""
    file = BytesIO()
    with av.open(file, "w", format=container) as out:
        pictures = _picture_track(out, *picture) if picture else None
        sounds = _sound_track(out, sound) if sound else None
        if pictures:
            _encode_pictures(out, pictures)
        if sounds:
            _encode_tone(out, sounds)
        for stream in filter(None, (pictures, sounds)):
            out.mux(stream.encode(None))
    return file.getvalue()


def _picture_track(out: Any, codec: str, pix_fmt: str) -> Any:
    stream = out.add_stream(codec, rate=25)
    stream.width = stream.height = SIDE
    stream.pix_fmt = pix_fmt
    stream.codec_context.gop_size = 4
    if codec == "libx265":
        stream.options = {"x265-params": "log-level=none:pools=none:frame-threads=1"}
    return stream


def _encode_pictures(out: Any, stream: Any) -> None:
    for number in range(FRAMES):
        pixels = np.roll(np.asarray(_picture()), 3 * number, axis=1)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        out.mux(stream.encode(frame.reformat(format=stream.pix_fmt)))


def _sound_track(out: Any, codec: str) -> Any:
    rate = {"libopus": 48_000, "libopencore_amrnb": 8_000, "libmp3lame": 44_100}.get(codec, RATE)
    if codec in ("ac3", "eac3", "mp2"):
        rate = 48_000
    stream = out.add_stream(codec, rate=rate, layout="mono")
    stream.bit_rate = 12_200 if codec == "libopencore_amrnb" else 64_000
    return stream


def _encode_tone(out: Any, stream: Any) -> None:
    frame = av.AudioFrame.from_ndarray(_tone()[None], format="fltp", layout="mono")
    frame.sample_rate, frame.pts = RATE, 0
    out.mux(stream.encode(frame))  # PyAV resamples and cuts as the codec wants
