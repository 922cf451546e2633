"""Still images: bytes in, an upright RGB image out.

Knows orientation, transparency and sample depth. Does not resize or normalise: that is a model's.
"""

from __future__ import annotations

import re
import struct
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omni_core.errors import MediaError
from omni_core.media.limits import MediaLimits

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Only plain raster decoders: Pillow's full list holds formats that start other programs."""

_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
"""The last chunk of every PNG: no bytes, and their checksum."""

_JPEG_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
"""With its length and number of components: cameras append clips, where the marker alone is
found by chance."""
_MAX_SCANS = 100
"""Cameras and converters write some ten; each goes over all of the picture again."""

_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    TypeError,
    RuntimeError,
    struct.error,
)
"""What Pillow's decoders raise on damaged files."""

_CUT = "The image is damaged or cut short and cannot be decoded."


def load_image(data: bytes, limits: MediaLimits) -> Image.Image:
    """Decode one image to mode RGB, EXIF orientation applied, transparency over white.

    Of an animation the first frame counts; 16-bit samples keep their high byte. Raises MediaError
    for other formats, damaged files and, from the header alone, more than `limits.max_pixels`.
    """
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image, limits)
            if image.format == "PNG" and _PNG_END not in data:
                raise MediaError(_CUT)  # Pillow is content with the pixels
            if image.format in ("JPEG", "MPO") and len(_JPEG_SCAN.findall(data)) > _MAX_SCANS:
                raise MediaError(f"The image has more than {_MAX_SCANS} scans; save it anew.")
            return _to_rgb(ImageOps.exif_transpose(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise _too_many_pixels(limits) from exc
    except UnidentifiedImageError as exc:
        raise MediaError(
            f"The image could not be recognised; send one of {', '.join(_FORMATS)}."
        ) from exc
    except _BROKEN as exc:
        raise MediaError(_CUT) from exc


def _check_pixels(image: Image.Image, limits: MediaLimits) -> None:
    if image.width * image.height > limits.max_pixels:
        raise _too_many_pixels(limits)


def _too_many_pixels(limits: MediaLimits) -> MediaError:
    return MediaError(
        f"The image has more than {limits.max_pixels} pixels, the limit; scale it down."
    )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow's own conversion clips 16-bit grey to 255; of 16-bit RGB it keeps the high byte.
        samples = np.asarray(image).astype(np.int64)
        high_byte = np.clip(samples >> 8, 0, 255)
        if isinstance(clear := image.info.get("transparency"), int):
            high_byte[samples == clear] = 255
        return Image.fromarray(high_byte.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGB", rgba.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return image.convert("RGB")
