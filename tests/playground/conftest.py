"""A headless Chromium before a live server: what each test of the page needs.

Knows how to start both, and where screenshots go. Real speech comes from files that
`nox -s playground` makes and names in OMNI_SAID and OMNI_INTERRUPTION.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
import soxr
from person import AWKWARD_KEY, KEY
from playwright.sync_api import Browser, Page, expect, sync_playwright

from families import FAMILY

RATE = 48_000
BEFORE_S, BETWEEN_S, AFTER_S = 1.5, 3.5, 90.0
"""Silence around what is said; the reply to the first words lasts longer than `BETWEEN_S`."""
ELSEWHERE = "omni.test"
"""A name of this machine that browsers do not take for it."""
PATIENCE_MS = 60_000


@pytest.fixture(scope="session")
def url(
    live_server: Callable[..., AbstractContextManager[httpx.Client]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Of a server that wants a key, of the family that OMNI_FAMILY names."""
    checkpoint = str(tmp_path_factory.mktemp(FAMILY.name))
    FAMILY.build(checkpoint)
    with live_server(checkpoint, "--api-key", KEY, "--api-key", AWKWARD_KEY) as client:
        yield str(client.base_url).rstrip("/").replace("127.0.0.1", "localhost")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; into its microphone somebody speaks, and interrupts the reply."""
    recording = tmp_path_factory.mktemp("microphone") / "talk.wav"
    soundfile.write(recording, conversation(), RATE, subtype="PCM_16")
    flags = [
        "--no-sandbox",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={recording}%noloop",
        f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
    ]
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        yield chromium
        chromium.close()


def conversation() -> np.ndarray:
    """What the person says, with the silence between."""
    pieces = [np.zeros(round(RATE * BEFORE_S))]
    for variable, silence_s in (("OMNI_SAID", BETWEEN_S), ("OMNI_INTERRUPTION", AFTER_S)):
        samples, rate = soundfile.read(os.environ[variable])
        pieces += [soxr.resample(samples, rate, RATE), np.zeros(round(RATE * silence_s))]
    return np.concatenate(pieces)


@pytest.fixture
def opened(browser: Browser, url: str) -> Iterator[Callable[..., Page]]:
    """Opens the page, with the key if not told otherwise; fails on anything the console says."""
    said: list[str] = []
    contexts = []

    def open_page(
        *, width: int = 1280, height: int = 800, scheme: str = "light", key: str = KEY,
        microphone: bool = False, host: str = "localhost", motion: str = "no-preference",
        before: Callable[[Page], None] = lambda page: None,
    ) -> Page:  # fmt: skip
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion=motion,  # type: ignore[arg-type]
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        if microphone:
            context.grant_permissions(["microphone"])
        if key:
            context.add_init_script(f"sessionStorage.setItem('omni.api-key', '{key}')")
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        before(page)
        page.goto(url.replace("localhost", host))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [line for line in said if not line.startswith("Failed to load resource")] == []


@pytest.fixture
def picture_of() -> Callable[[Page, str], None]:
    """Keeps a screenshot where OMNI_SCREENSHOTS says, if it does."""
    folder = os.environ.get("OMNI_SCREENSHOTS")

    def keep(page: Page, name: str) -> None:
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png")

    return keep
