"""The page in Firefox: it loads, a written turn streams in, and a voice conversation opens.

For `nox -s playground`: needs Debian's firefox-esr and pulseaudio, which the other sessions lack.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api")  # what is shared with the tests in Chromium imports it
if shutil.which("firefox-esr") is None:
    pytest.skip("there is no firefox-esr; Debian's package is enough", allow_module_level=True)

from bidi import Firefox, firefox
from person import AWKWARD_KEY

STATE = "document.getElementById('voice-state').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with firefox("firefox-esr", tmp_path_factory.mktemp("firefox")) as found:
        yield found


@pytest.fixture
def page(browser: Firefox, url: str) -> Iterator[Firefox]:
    """The page, with a key."""
    browser.go(url)
    browser.evaluate(f"sessionStorage.setItem('omni.api-key', {json.dumps(AWKWARD_KEY)})")
    browser.said.clear()
    browser.go(url)
    browser.wait("!document.getElementById('send').disabled")
    yield browser
    assert browser.said == []


def test_a_written_turn_streams_in_and_is_spoken(page: Firefox) -> None:
    page.evaluate("""(() => {
      document.getElementById("max_tokens").value = "40";
      window.lengths = new Set();
      new MutationObserver(() => {
        window.lengths.add(document.querySelector(".assistant .words")?.textContent.length ?? 0);
      }).observe(document.getElementById("transcript"), { subtree: true, childList: true });
      document.getElementById("text").value = "Hello";
      document.getElementById("send").click();
    })()""")
    page.wait("document.querySelector('.assistant dl')")
    measures = str(page.evaluate("document.querySelector('.assistant dl').innerText"))
    assert all(name in measures for name in ("TTFT", "TTFA", "RTF", "Audio", "Tokens"))
    assert int(page.evaluate("window.lengths.size")) > 5


@pytest.mark.skipif(
    shutil.which("pulseaudio") is None,
    reason="Firefox runs no sound where there is no loudspeaker; Debian's pulseaudio is enough",
)
def test_a_voice_conversation_opens_hears_and_ends(page: Firefox) -> None:
    """The fake microphone gives a tone, which is no speech: a written turn is answered by voice."""
    page.evaluate("""(() => {
      const send = WebSocket.prototype.send;
      window.pieces = [];
      WebSocket.prototype.send = function (text) {
        const event = JSON.parse(text);
        if (event.type === "input_audio_buffer.append") window.pieces.push(event.audio);
        return send.call(this, text);
      };
      document.getElementById("max_tokens").value = "40";
      document.getElementById("talk").click();
    })()""")
    page.wait(f"['Listening', 'Hearing you', 'Thinking'].includes({STATE})")
    page.wait("window.pieces.length > 50")
    loud = "window.pieces.filter((piece) => new Set(atob(piece)).size > 8).length"
    assert int(page.evaluate(loud)) > 20
    assert page.evaluate("window.pieces.every((piece) => piece.length === 2560)")
    page.evaluate("""(() => {
      document.getElementById("text").value = "Hello";
      document.getElementById("send").click();
    })()""")
    page.wait("document.querySelector('.assistant:last-child dl')")
    assert "TTFA" in str(page.evaluate("document.querySelector('.assistant dl').innerText"))
    page.evaluate("document.getElementById('hang-up').click()")
    page.wait("document.getElementById('voice-panel').hidden")
    assert page.evaluate("document.getElementById('problem').hidden")


def test_a_microphone_that_is_none_is_explained(page: Firefox) -> None:
    page.evaluate("""(() => {
      navigator.mediaDevices.getUserMedia = async () => {
        throw new DOMException("none", "NotFoundError");
      };
      document.getElementById("talk").click();
    })()""")
    page.wait("!document.getElementById('problem').hidden")
    told = page.evaluate("document.querySelector('#problem [role=alert]').textContent")
    assert told == "There is no microphone. Plug one in, then talk again."
