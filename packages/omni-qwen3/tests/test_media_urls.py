"""Media behind URLs: each is asked for once, whatever a request makes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import numpy as np
import pytest

from media import frames, matroska, picture, png, sweep, wav
from omni_core.errors import ContextLengthError, MediaError, PayloadTooLargeError
from omni_core.media import MediaLimits
from omni_core.types import (
    MediaKind,
    MediaOptions,
    MediaPart,
    Message,
    RequestParams,
    Shared,
    TextPart,
)
from omni_qwen3.payloads import Prompt
from omni_qwen3.preprocess.stage import Preprocessor

FILES = {
    "/picture": png(picture(64, 64)),
    "/clip": matroska(frames(4, 64, 64), sweep(2)),
    "/sound": wav(sweep(1)),
}
WITH_SOUND = MediaOptions(use_audio_in_video=True, min_pixels=4 * 1024, max_pixels=16 * 1024)


class Site(ThreadingHTTPServer):
    """Serves `FILES` and keeps what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []

    def part(self, kind: MediaKind, path: str) -> MediaPart:
        return MediaPart(kind=kind, url=f"http://127.0.0.1:{self.server_port}{path}")


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = FILES.get(self.path, b"")
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def preprocessor(tiny_checkpoint: str) -> Preprocessor:
    return Preprocessor(tiny_checkpoint, MediaLimits(allow_private_addresses=True))


def ask(
    preprocessor: Preprocessor, *parts: MediaPart, options: MediaOptions = WITH_SOUND
) -> Prompt:
    message = Message(role="user", content=(*parts, TextPart(text="What is this?")))
    return preprocessor.prompt((message,), RequestParams(media=options))


def test_pictures_and_sound_of_a_video_are_one_fetch(
    site: Site, preprocessor: Preprocessor
) -> None:
    prompt = ask(preprocessor, site.part("video", "/clip"))
    assert site.asked == ["/clip"]
    assert {"video", "audio"} <= set(prompt)
    again = ask(preprocessor, site.part("video", "/clip"))
    assert site.asked == ["/clip"] * 2, "what a URL serves may have changed since"
    np.testing.assert_array_equal(again["input_ids"], prompt["input_ids"])


def test_a_url_named_twice_is_one_fetch(site: Site, preprocessor: Preprocessor) -> None:
    """As one picture twice, or as a clip's pictures and, apart from them, its sound."""
    parts = [site.part("image", "/picture")] * 2 + [site.part("video", "/clip")]
    parts += [site.part("audio", path) for path in ("/clip", "/sound")]
    prompt = ask(preprocessor, *parts, options=MediaOptions())
    assert site.asked == ["/picture", "/clip", "/sound"]
    assert len(prompt["image"]["keys"]) == 2
    assert len(prompt["audio"]["keys"]) == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_choices_share_what_one_of_them_fetches(
    site: Site, preprocessor: Preprocessor, at_once: bool
) -> None:
    shared = Shared(by="call", requests=4)
    parts = [site.part("video", "/clip"), site.part("image", "/picture")]
    parts = [msgspec.structs.replace(part, shared=shared) for part in parts]
    with ThreadPoolExecutor(4 if at_once else 1) as pool:
        prompts = list(pool.map(lambda _: ask(preprocessor, *parts), range(4)))
    assert sorted(site.asked) == ["/clip", "/picture"]
    for prompt in prompts:
        np.testing.assert_array_equal(prompt["input_ids"], prompts[0]["input_ids"])


def test_what_urls_bring_together_is_bounded(site: Site, tiny_checkpoint: str) -> None:
    """Each of them may be as large as an item may be; a request is no larger for that."""
    sizes = [len(FILES[path]) for path in ("/picture", "/sound")]
    for limit, fits in ((sum(sizes), True), (sum(sizes) - 1, False)):
        limits = MediaLimits(allow_private_addresses=True, request_max_bytes=limit)
        parts = [site.part("image", "/picture"), site.part("audio", "/sound")]
        preprocessor = Preprocessor(tiny_checkpoint, limits)
        if fits:
            ask(preprocessor, *parts)
            continue
        with pytest.raises(PayloadTooLargeError, match="together") as refusal:
            ask(preprocessor, *parts)
        assert refusal.value.param == "messages[0].content[1]"


def test_urls_share_the_time_a_request_may_fetch(site: Site, tiny_checkpoint: str) -> None:
    limits = MediaLimits(allow_private_addresses=True, request_fetch_timeout_s=0)
    with pytest.raises(MediaError, match="within 0 s together"):
        ask(Preprocessor(tiny_checkpoint, limits), site.part("image", "/picture"))
    assert not site.asked


@pytest.mark.parametrize(
    ("limits", "words", "param"),
    [
        ({"request_max_pixels": 6 * 64 * 64 - 1}, "pixels together", "messages[0].content[2]"),
        ({"request_max_audio_seconds": 2.9}, "2.9 s together", "messages[0].content[3]"),
    ],
    ids=["pixels", "sound"],
)
def test_what_is_decoded_of_a_request_is_bounded(
    tiny_checkpoint: str, limits: dict[str, float], words: str, param: str
) -> None:
    """Frames count as pictures do, sound tracks as clips; what was met before costs nothing."""
    preprocessor = Preprocessor(tiny_checkpoint, MediaLimits(**limits))
    kinds: tuple[tuple[MediaKind, str], ...] = (("video", "/clip"), ("image", "/picture"))
    parts = [MediaPart(kind=kind, data=FILES[path]) for kind, path in kinds]
    other = MediaPart(kind="image", data=png(picture(64, 64, seed=1)))
    sound = MediaPart(kind="audio", data=FILES["/sound"])
    for part in (*parts, other, sound):
        ask(preprocessor, part)
    ask(preprocessor, *parts, other, sound)
    with pytest.raises(MediaError, match=words) as refusal:
        ask(Preprocessor(tiny_checkpoint, MediaLimits(**limits)), *parts, other, sound)
    assert refusal.value.param == param


def test_more_items_than_the_context_has_room_for_are_not_fetched(
    site: Site, preprocessor: Preprocessor
) -> None:
    with pytest.raises(ContextLengthError):
        ask(preprocessor, *[site.part("image", "/picture")] * 8_192)
    assert not site.asked


def test_a_url_that_fails_is_not_tried_for_each_choice(
    site: Site, preprocessor: Preprocessor
) -> None:
    part = site.part("image", "/nothing")
    part = msgspec.structs.replace(part, shared=Shared(by="call", requests=3), param="images[0]")
    for _ in range(3):
        with pytest.raises(MediaError, match="status 404") as refusal:
            ask(preprocessor, part)
        assert refusal.value.param == "images[0]"
    assert site.asked == ["/nothing"]
