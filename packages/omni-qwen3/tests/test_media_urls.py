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
from omni_core.errors import MediaError
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
