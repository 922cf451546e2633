"""data: and file: URLs, bare base64, and media parts."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.errors import MediaError, PayloadTooLargeError
from omni_core.media import MediaLimits, decode_base64, fetch, media_bytes
from omni_core.types import MediaPart

LIMITS = MediaLimits()
DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"data:image/png;base64,{TEXT}", DATA),
        (f"DATA:audio/wav;codecs=1;charset=utf-8;BASE64,{TEXT}", DATA),
        (f"data:;base64,{TEXT}", DATA),
        ("data:;base64,%2B%2F8%3D", b"\xfb\xff"),
        ("data:text/plain,a%20b%00c", b"a b\x00c"),
        ("data:,plain", b"plain"),
    ],
)
def test_data_urls(url: str, expected: bytes) -> None:
    assert fetch(url, LIMITS) == expected


@pytest.mark.parametrize(
    "text",
    ["AAA", "AA=A", "AAAA=", "AA\nAA", "-_-_", "AAA*", "äöüß", "====", "AAAA AAAA"],
)
def test_base64_is_strict(text: str) -> None:
    for decode in (
        lambda: decode_base64(text, LIMITS),
        lambda: fetch(f"data:image/png;base64,{text}", LIMITS),
    ):
        with pytest.raises(MediaError, match="not valid base64") as caught:
            decode()
        assert caught.value.status == 400
        assert caught.value.code == "invalid_media"


def test_bare_base64_skips_a_stray_prefix() -> None:
    assert decode_base64(TEXT, LIMITS) == DATA
    assert decode_base64(f"data:audio/wav;base64,{TEXT}", LIMITS) == DATA
    assert decode_base64(f"data:oops,{TEXT}", LIMITS) == DATA


@pytest.mark.parametrize("url", ["data:image/png;base64,", "data:,"])
def test_nothing_is_an_error(url: str) -> None:
    with pytest.raises(MediaError, match="empty"):
        fetch(url, LIMITS)


def test_a_data_url_needs_its_comma() -> None:
    with pytest.raises(MediaError, match="no comma"):
        fetch("data:image/png;base64", LIMITS)


def test_sizes_are_checked_to_the_byte() -> None:
    exact = MediaLimits(max_bytes=len(DATA))
    short = MediaLimits(max_bytes=len(DATA) - 1)
    percent = "data:," + "%41" * len(DATA)
    assert decode_base64(TEXT, exact) == DATA
    assert fetch(percent, exact) == b"A" * len(DATA)
    for url in (f"data:;base64,{TEXT}", percent):
        with pytest.raises(PayloadTooLargeError, match="255 bytes") as caught:
            fetch(url, short)
        assert caught.value.status == 413


def test_size_is_checked_before_decoding() -> None:
    with pytest.raises(PayloadTooLargeError):
        decode_base64("*" * 4_000, MediaLimits(max_bytes=100))


@pytest.mark.parametrize(
    "url", ["ftp://example.com/a", "gopher://x", "/etc/passwd", "", "javascript:1"]
)
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(MediaError, match="unsupported scheme"):
        fetch(url, LIMITS)


def test_files_are_off_by_default(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with pytest.raises(MediaError, match="switched off"):
        fetch((tmp_path / "a").as_uri(), LIMITS)


def test_files_below_the_allowed_directory(tmp_path: Path) -> None:
    root = tmp_path / "media"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a b.bin").write_bytes(DATA)
    (root / "inside").symlink_to(root / "sub" / "a b.bin")
    (tmp_path / "link-to-media").symlink_to(root)
    limits = MediaLimits(allowed_media_dir=str(tmp_path / "link-to-media"), max_bytes=256)
    assert fetch((root / "sub" / "a b.bin").as_uri(), limits) == DATA
    assert fetch(f"file://localhost{root}/inside", limits) == DATA
    with pytest.raises(PayloadTooLargeError):
        fetch((root / "inside").as_uri(), MediaLimits(allowed_media_dir=str(root), max_bytes=255))


def test_refused_files_all_read_the_same(tmp_path: Path) -> None:
    root = tmp_path / "media"
    root.mkdir()
    secret = tmp_path / "media-secret"
    secret.write_bytes(b"secret")
    (root / "escape").symlink_to(secret)
    (root / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(root / "fifo")
    urls = [
        secret.as_uri(),
        (tmp_path / "missing").as_uri(),
        (root / "missing").as_uri(),
        (root / "escape").as_uri(),
        (root / "dangling").as_uri(),
        (root / "fifo").as_uri(),
        root.as_uri(),
        f"file://{root}/../media-secret",
        f"file://{root}/%2e%2e/media-secret",
        f"file://{root}/a%00b",
        f"file://otherhost{root}/escape",
        "file://[x/y",
        "file:",
    ]
    limits = MediaLimits(allowed_media_dir=str(root))
    messages = set()
    for url in urls:
        with pytest.raises(MediaError) as caught:
            fetch(url, limits)
        messages.add(caught.value.message)
    assert len(messages) == 1
    assert str(tmp_path) not in messages.pop()


def test_media_parts() -> None:
    assert media_bytes(MediaPart(kind="image", data=DATA), LIMITS) == DATA
    url = f"data:;base64,{TEXT}"
    assert media_bytes(MediaPart(kind="image", url=url), LIMITS) == DATA
    with pytest.raises(MediaError, match="neither data nor a URL"):
        media_bytes(MediaPart(kind="audio"), LIMITS)
    with pytest.raises(MediaError, match="empty"):
        media_bytes(MediaPart(kind="audio", data=b""), LIMITS)
    with pytest.raises(PayloadTooLargeError):
        media_bytes(MediaPart(kind="audio", data=DATA), MediaLimits(max_bytes=10))


def test_core_itself_imports_no_codec() -> None:
    program = (
        "import sys, omni_core, omni_core.types, omni_core.errors, omni_core.specs;"
        "print(sorted({'av', 'PIL', 'soundfile', 'soxr', 'httpcore'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"
