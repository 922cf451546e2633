"""Writing on the page in a real browser: replies, keys, looks, and errors.

For `nox -s playground`: needs Debian's chromium and playwright, which the other sessions lack.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
if shutil.which("chromium") is None:
    pytest.skip("there is no chromium; Debian's package is enough", allow_module_level=True)

from person import (
    KEY,
    KeepPicture,
    OpenPage,
    answered,
    ask,
    fulfil,
    illegible,
    limit,
    painted,
    written,
)
from playwright.sync_api import Route, expect

from families import FAMILY

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"


def test_the_key_is_asked_for_and_kept_for_the_tab(
    opened: OpenPage, picture_of: KeepPicture
) -> None:
    page = opened(key="")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_label("Key")).to_be_focused()
    picture_of(page, "key")
    dialog.get_by_label("Key").fill("a-wrong-one")
    dialog.get_by_label("Key").press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Incorrect key")
    dialog.get_by_label("Key").fill(KEY)
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    kept = page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]")
    assert kept == [1, 0, ""]
    page.reload()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(dialog).to_be_hidden()


def test_who_has_no_key_is_told_and_can_still_enter_one(opened: OpenPage) -> None:
    page = opened(key="")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    alert = page.locator("#problem").get_by_role("alert")
    expect(alert).to_have_text("Without an API key, this server answers nothing.")
    expect(page.get_by_role("button", name="Close")).to_be_hidden()
    expect(page.get_by_role("button", name="Enter a key")).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Not now").click()
    expect(alert).to_be_visible()
    page.get_by_role("button", name="Enter a key").click()
    dialog.get_by_label("Key").fill(KEY)
    dialog.get_by_label("Key").press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(alert).to_be_hidden()


def test_a_server_that_fails_at_first_is_asked_again(opened: OpenPage) -> None:
    error = {"message": "An error of its own.", "type": "server_error"}
    page = opened(
        before=fulfil("v1/models", lambda route: route.fulfill(status=500, json={"error": error}))
    )
    expect(page.get_by_role("alert")).to_have_text("An error of its own.")
    expect(page.get_by_role("button", name="Close")).to_be_hidden()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_sound_that_could_not_be_had_is_asked_for_again(opened: OpenPage) -> None:
    page = opened()
    limit(page, 8)
    page.evaluate("""() => {
      const real = AudioWorklet.prototype.addModule;
      AudioWorklet.prototype.addModule = async () => {
        AudioWorklet.prototype.addModule = real;
        throw new Error("no such module");
      };
    }""")
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_have_text("Sound cannot be played: no such module")
    page.get_by_role("button", name="Try again").click()
    assert answered(page).locator("dt", has_text="TTFA").count() == 1


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("desktop", {}),
        ("desktop-dark", {"scheme": "dark"}),
        ("phone", {"width": 360, "height": 740}),
        ("phone-dark", {"width": 360, "height": 740, "scheme": "dark"}),
    ],
)
def test_a_written_turn_with_a_picture(
    opened: OpenPage, picture_of: KeepPicture, tmp_path: Path, name: str, look: dict[str, Any]
) -> None:
    page = opened(**look)
    picture_of(page, f"{name}-empty")
    limit(page, 24)
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    page.locator("#files").set_input_files(painted(tmp_path))
    expect(page.get_by_role("button", name="Remove picture.png")).to_be_visible()
    ask(page, "What is on this picture? " + "W" * 60)
    turn = answered(page)
    for measure in ("TTFT", "TTFA", "RTF", "Audio", "Tokens"):
        assert turn.locator("dt", has_text=measure).count() == 1
    turn.locator("summary").click()
    expect(turn.get_by_text(FAMILY.speech_stages[-1])).to_be_visible()
    bars = turn.locator(".bar")
    assert bars.count() >= 6
    assert all(bar.bounding_box()["width"] > 1 for bar in bars.all())
    picture_of(page, f"{name}-answered")
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert illegible(page) == []

    words = turn.locator(".words").inner_text()
    ask(page, "And now?")
    answered(page, 1)
    [first, second] = bodies
    assert first["modalities"] == ["text", "audio"]
    assert first["audio"] == {"format": "pcm16", "voice": FAMILY.voices[0]}
    assert first["max_tokens"] == 24
    [picture, text] = first["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert text["text"].startswith("What is")
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1] == {"role": "assistant", "content": words}


def test_without_speech_talking_is_off_and_replies_are_text(
    opened: OpenPage, picture_of: KeepPicture
) -> None:
    def text_only(route: Route) -> None:
        answer = route.fetch()
        listed = answer.json()
        listed["data"][0] |= {
            "output_modalities": ["text"], "voices": [], "default_voice": None, "sample_rate": None
        }  # fmt: skip
        route.fulfill(response=answer, json=listed)

    page = opened(before=fulfil("v1/models", text_only), microphone=True)
    expect(page.get_by_role("button", name="Talk")).to_be_disabled()
    expect(page.get_by_text("Talking is off: this server runs without speech")).to_be_visible()
    expect(page.get_by_label("Voice", exact=True)).to_be_disabled()
    limit(page, 8)
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Hello")
    assert asked.value.post_data_json["modalities"] == ["text"]
    turn = answered(page)
    assert turn.locator("dt", has_text="TTFA").count() == 0
    picture_of(page, "text-only")


def test_a_busy_server_is_asked_again(opened: OpenPage, picture_of: KeepPicture) -> None:
    error = {"message": "The queue is full; retry later.", "type": "server_error"}

    def busy(route: Route) -> None:
        route.fulfill(status=503, headers={"Retry-After": "2"}, json={"error": error})

    page = opened(before=fulfil("v1/chat/completions", busy))
    limit(page, 8)
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_have_text("The queue is full; retry later.")
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_disabled()
    picture_of(page, "busy")
    expect(again).to_be_enabled()
    again.click()
    answered(page)
    expect(page.get_by_role("alert")).to_be_hidden()
    assert page.locator("#transcript > article").count() == 2


def test_what_the_server_refuses_is_shown_and_not_asked_again(opened: OpenPage) -> None:
    page = opened()
    page.locator("#files").set_input_files(
        {"name": "no.png", "mimeType": "image/png", "buffer": b"nothing of the kind"}
    )
    ask(page, "What is this?")
    expect(page.get_by_role("alert")).to_contain_text("image")
    expect(page.get_by_role("button", name="Try again")).to_be_hidden()
    expect(page.get_by_text("Not answered")).to_be_visible()
    limit(page, 8)
    ask(page, "And without?")
    answered(page)
    page.locator("#files").set_input_files(
        {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}
    )
    expect(page.get_by_role("alert")).to_have_text("a.txt is no picture, sound or video.")


def test_a_reply_that_breaks_off_says_so(opened: OpenPage) -> None:
    def broken(route: Route) -> None:
        chunk = {"choices": [{"delta": {"content": "So"}, "finish_reason": None}]}
        body = f"data: {json.dumps(chunk)}\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page = opened(before=fulfil("v1/chat/completions", broken))
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("The reply broke off")


def test_words_of_the_model_are_never_markup(opened: OpenPage) -> None:
    def hostile(route: Route) -> None:
        choice = {"delta": {"content": MARKUP}, "finish_reason": "stop"}
        body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page = opened(before=fulfil("v1/chat/completions", hostile))
    ask(page, MARKUP)
    expect(page.locator(".assistant .words")).to_have_text(MARKUP)
    expect(page.locator(".user .words")).to_have_text(MARKUP)
    assert page.locator("#transcript img, #transcript b").count() == 0


def test_everything_has_a_name_and_a_place_in_the_order(opened: OpenPage) -> None:
    page = opened()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.locator("body").press("Tab")
    reached = []
    for _ in range(20):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
        page.keyboard.press("Tab")
    order = [
        *("new", "settings-button", "text", "attach", "talk", "send"),
        *("voice", "speak", "instructions", "temperature", "top_p", "max_tokens", "seed"),
    ]
    assert [name for name in reached if name in order][: len(order)] == order
    tree = page.locator("body").aria_snapshot()
    for line in tree.splitlines():
        kind = line.strip().removeprefix("- ").split(" ")[0].rstrip(":")
        if kind in ("button", "textbox", "combobox", "checkbox", "spinbutton"):
            assert '"' in line, f"without a name: {line}"
    assert 'log "Transcript"' in tree


def test_the_keyboard_alone_is_enough_on_a_phone(opened: OpenPage) -> None:
    page = opened(width=360, height=740)
    page.get_by_role("button", name="Settings").press("Enter")
    expect(page.get_by_label("Max tokens")).to_be_visible()
    page.get_by_label("Max tokens").fill("300")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    written(page).fill("Hello")
    page.get_by_role("button", name="Send").press("Enter")
    expect(written(page)).to_be_focused()  # not lost with the button, which is away meanwhile
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_role("button", name="Attach").focus()
    ring = "getComputedStyle(document.activeElement).outline"
    page.keyboard.press("Tab")
    assert "2px" in page.evaluate(ring)
    expect(page.get_by_role("button", name="Talk")).to_be_focused()
