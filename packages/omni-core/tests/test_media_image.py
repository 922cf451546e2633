"""Images of every sample format, orientation and kind of damage."""

import struct
import tracemalloc
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from omni_core.errors import MediaError
from omni_core.media import MediaLimits, load_image

LIMITS = MediaLimits()
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 10, 3), dtype=np.uint8)


def encoded(image: Image.Image, fmt: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, fmt, **options)
    return buffer.getvalue()


def decoded(data: bytes, limits: MediaLimits = LIMITS) -> npt.NDArray[np.uint8]:
    image = load_image(data, limits)
    assert image.mode == "RGB"
    return np.asarray(image)


def png(width: int, height: int, depth: int, color_type: int, rows: bytes, **more: bytes) -> bytes:
    """A PNG from raw scan lines, for formats Pillow does not write; `more` chunks before them."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + b"".join(chunk(kind.encode(), body) for kind, body in more.items())
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("fmt", ["PNG", "BMP", "TIFF", "WEBP", "AVIF"])
def test_lossless_formats_are_exact(fmt: str) -> None:
    options = {"WEBP": {"lossless": True}, "AVIF": {"quality": 100, "subsampling": "4:4:4"}}
    data = encoded(Image.fromarray(PIXELS), fmt, **options.get(fmt, {}))
    tolerance = 4 if fmt == "AVIF" else 0
    assert np.abs(decoded(data).astype(int) - PIXELS).max() <= tolerance


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_exif_orientation_is_applied(fmt: str, orientation: int) -> None:
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:8, :16] = 255  # one bright corner, top left as stored
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decoded(encoded(Image.fromarray(stored), fmt, exif=exif))
    # EXIF 2.3, tag 0x0112: where row 0 and column 0 of the stored image belong
    row_at, column_at, transposed = {
        1: (0, 0, False), 2: (0, 1, False), 3: (1, 1, False), 4: (1, 0, False),
        5: (0, 0, True), 6: (0, 1, True), 7: (1, 1, True), 8: (1, 0, True),
    }[orientation]  # fmt: skip
    assert upright.shape == ((32, 16, 3) if transposed else (16, 32, 3))
    height, width = upright.shape[:2]
    corner = upright[
        row_at * height // 2 : (row_at + 1) * height // 2,
        column_at * width // 2 : (column_at + 1) * width // 2,
    ]
    assert corner.min() > 240
    assert upright.astype(int).sum() == pytest.approx(255 * 3 * 128, rel=0.02)


def test_sixteen_bit_grey_keeps_its_high_byte() -> None:
    grey = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    expected = np.array([[0, 0, 1, 128, 255]], np.uint8)
    for fmt in ("PNG", "TIFF"):
        pixels = decoded(encoded(Image.fromarray(grey), fmt))
        np.testing.assert_array_equal(pixels, np.repeat(expected[..., None], 3, 2))


def test_sixteen_bit_rgb_keeps_its_high_byte() -> None:
    rows = b"\0" + struct.pack(">6H", 0, 255, 256, 32768, 65535, 0x1234)
    np.testing.assert_array_equal(decoded(png(2, 1, 16, 2, rows)), [[[0, 0, 1], [128, 255, 0x12]]])


def test_transparency_of_sixteen_bit_samples_lies_over_white() -> None:
    grey = png(2, 1, 16, 0, b"\0" + struct.pack(">2H", 0x1234, 0x1235), tRNS=b"\x12\x34")
    grey_alpha = png(2, 1, 16, 4, b"\0" + struct.pack(">4H", 0x1234, 0, 0x1235, 0xFFFF))
    for data in (grey, grey_alpha):
        np.testing.assert_array_equal(decoded(data)[0], [[255] * 3, [0x12] * 3])
    rgba = png(2, 1, 16, 6, b"\0" + struct.pack(">8H", 1, 2, 3, 0, 0x1234, 0x8000, 0xFFFF, 0xFFFF))
    np.testing.assert_array_equal(decoded(rgba)[0], [[255] * 3, [0x12, 0x80, 255]])


def test_palette_grey_and_bilevel() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    np.testing.assert_array_equal(
        decoded(encoded(palette, "PNG")), [[[10, 20, 30], [200, 100, 50]]]
    )
    grey = np.array([[0, 7, 255]], np.uint8)
    np.testing.assert_array_equal(
        decoded(encoded(Image.fromarray(grey), "PNG")), np.repeat(grey[..., None], 3, 2)
    )
    bilevel = Image.fromarray(grey).convert("1", dither=Image.Dither.NONE)
    assert decoded(encoded(bilevel, "PNG"))[0, :, 0].tolist() == [0, 0, 255]


def test_transparency_lies_over_white() -> None:
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 128]]], np.uint8)
    for data in (
        encoded(Image.fromarray(rgba), "PNG"),
        encoded(Image.fromarray(rgba), "WEBP", lossless=True, exact=True),
    ):
        np.testing.assert_array_equal(
            decoded(data), [[[10, 20, 30], [255, 255, 255], [127, 127, 127]]]
        )
    grey_alpha = np.array([[[40, 255], [40, 0]]], np.uint8)
    np.testing.assert_array_equal(
        decoded(encoded(Image.fromarray(grey_alpha), "PNG"))[0, :, 0], [40, 255]
    )
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    np.testing.assert_array_equal(
        decoded(encoded(palette, "PNG", transparency=1)), [[[10, 20, 30], [255, 255, 255]]]
    )


@pytest.mark.parametrize(("fmt", "options"), [("JPEG", {"quality": 100}), ("TIFF", {})])
def test_cmyk(fmt: str, options: dict[str, Any]) -> None:
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    mean = decoded(encoded(cyan, fmt, **options)).reshape(-1, 3).mean(0)
    np.testing.assert_allclose(mean, [0, 255, 255], atol=3)


@pytest.mark.parametrize("fmt", ["GIF", "PNG", "WEBP"])
def test_the_first_frame_of_an_animation(fmt: str) -> None:
    red, blue = (Image.new("RGB", (8, 8), color) for color in ((255, 0, 0), (0, 0, 255)))
    options = {"lossless": True} if fmt == "WEBP" else {}
    data = encoded(red, fmt, save_all=True, append_images=[blue], duration=100, **options)
    np.testing.assert_array_equal(decoded(data), np.asarray(red))


def test_of_ten_thousand_frames_only_the_first_is_decoded() -> None:
    red, blue = (Image.new("RGB", (64, 64), color) for color in ((255, 0, 0), (0, 0, 255)))
    data = encoded(red, "GIF", save_all=True, append_images=[blue], duration=100)
    second = data.rindex(b"!\xf9\x04")
    data = data[:second] + 10_000 * data[second:-1] + data[-1:]
    with Image.open(BytesIO(data)) as image:
        assert image.n_frames == 10_001
    np.testing.assert_array_equal(decoded(data), np.asarray(red))


def test_heic_is_refused_with_what_works() -> None:
    heic = struct.pack(">I4s4sI4s4s", 24, b"ftyp", b"heic", 0, b"mif1", b"heic") + bytes(200)
    with pytest.raises(MediaError, match="send one of PNG, JPEG"):
        load_image(heic, LIMITS)


@pytest.mark.parametrize("size", [(1, 1), (1, 2000)])
def test_degenerate_sizes_decode(size: tuple[int, int]) -> None:
    assert load_image(encoded(Image.new("RGB", size), "PNG"), LIMITS).size == size


def test_pixels_are_counted_exactly_and_from_the_header() -> None:
    data = encoded(Image.fromarray(PIXELS), "PNG")
    assert decoded(data, MediaLimits(max_pixels=60)).shape == PIXELS.shape
    with pytest.raises(MediaError, match="more than 59 pixels"):
        load_image(data, MediaLimits(max_pixels=59))
    header_only = png(9_000, 9_000, 8, 2, b"")
    with pytest.raises(MediaError, match="more than 64000000 pixels"):
        load_image(header_only, LIMITS)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 60_000, 2_000_000_000])
def test_decompression_bombs(side: int) -> None:
    with pytest.raises(MediaError, match="more than 64000000 pixels"):
        load_image(png(side, side, 8, 2, b""), LIMITS)


@pytest.mark.parametrize("kind", ["zTXt", "iCCP", "iTXt"])
def test_text_that_unpacks_to_much_is_not_unpacked(kind: str) -> None:
    """16 MiB of a comment or profile in 16 kB."""
    packed = zlib.compress(bytes(16 * 1024 * 1024))
    body = b"key\0\1\0\0\0" + packed if kind == "iTXt" else b"key\0\0" + packed
    bomb = png(2, 1, 8, 0, b"\0ab", **{kind: body})
    tracemalloc.start()
    try:
        with pytest.raises(MediaError, match="damaged"):
            load_image(bomb, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_jpeg_has_as_many_scans_as_cameras_write() -> None:
    """Each is a pass over all pixels, for a few bytes."""
    data = encoded(Image.fromarray(PIXELS), "JPEG", progressive=True)
    assert data.count(b"\xff\xda") > 5
    assert decoded(data).shape == PIXELS.shape
    last = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(MediaError, match="more than 100 scans"):
        load_image(data[:-2] + 100 * last + data[-2:], LIMITS)


def test_what_a_camera_appends_to_a_photo_is_no_scan() -> None:
    data = encoded(Image.fromarray(PIXELS), "JPEG")
    assert decoded(data + 200 * b"\xff\xda--").shape == PIXELS.shape


def test_of_several_pictures_in_a_jpeg_the_first_counts() -> None:
    """As cameras store a photo and its preview, or two views of a scene."""
    red, blue = (Image.new("RGB", (8, 8), color) for color in ((254, 0, 0), (0, 0, 254)))
    data = encoded(red, "MPO", save_all=True, append_images=[blue])
    np.testing.assert_allclose(decoded(data), np.asarray(red), atol=2)


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_truncated_files(fmt: str) -> None:
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, fmt)
    with pytest.raises(MediaError, match=r"damaged|recognised"):
        load_image(data[: len(data) // 2], LIMITS)


@pytest.mark.parametrize("missing", [1, 4, 12, 20])
def test_a_png_that_lost_only_its_end_is_cut_short(missing: int) -> None:
    data = encoded(Image.fromarray(PIXELS), "PNG")
    with pytest.raises(MediaError, match="cut short"):
        load_image(data[:-missing], LIMITS)
    assert np.array_equal(decoded(data + b"bytes after the end"), PIXELS)


def test_damaged_chunks_and_foreign_bytes() -> None:
    data = bytearray(encoded(Image.fromarray(PIXELS), "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(MediaError, match="damaged"):
        load_image(bytes(data), LIMITS)
    for foreign in (
        b"",
        b"hello",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"RIFF\0\0\0\0WAVEfmt ",
        bytes(99),
    ):
        with pytest.raises(MediaError, match=r"send one of PNG, JPEG"):
            load_image(foreign, LIMITS)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_flipped_bytes_never_escape_as_other_errors() -> None:
    """Every decoder either copes with damage or raises MediaError."""
    noise = Image.fromarray(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    outcomes = {True: 0, False: 0}
    for fmt in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"):
        data = encoded(noise, fmt, **({} if fmt in ("GIF", "BMP") else {"exif": exif}))
        for _ in range(60):
            damaged = bytearray(data)
            for position in RNG.integers(0, min(len(data), 400), 4):
                damaged[position] = RNG.integers(0, 256)
            try:
                load_image(bytes(damaged), MediaLimits(max_pixels=1_000_000))
            except MediaError:
                outcomes[False] += 1
            else:
                outcomes[True] += 1
    assert min(outcomes.values()) > 20
