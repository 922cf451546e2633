"""What a person does on the page, in a real browser: writes, talks, interrupts, and meets errors.

For `nox -s playground`: needs Debian's chromium and playwright, which the other sessions lack.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
if shutil.which("chromium") is None:
    pytest.skip("there is no chromium; Debian's package is enough", allow_module_level=True)

from playwright.sync_api import Page, Route, WebSocket, WebSocketRoute, expect

HERE = Path(__file__).parent
FIRST_REPLY = ".assistant >> nth=0"
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
OpenPage = Callable[..., Page]
KeepPicture = Callable[[Page, str], None]


def ask(page: Page, text: str) -> None:
    written(page).fill(text)
    written(page).press("Enter")


def answered(page: Page, number: int = 0) -> Any:
    """The turn of a reply that is all there."""
    turn = page.locator(".assistant").nth(number)
    expect(turn.locator("dl")).to_be_visible()
    return turn


def written(page: Page) -> Any:
    return page.get_by_role("textbox", name="Message")


def limit(page: Page, tokens: int) -> None:
    if not page.get_by_label("Max tokens").is_visible():
        page.get_by_role("button", name="Settings").click()
    page.get_by_label("Max tokens").fill(str(tokens))
    if written(page).is_hidden():
        page.get_by_role("button", name="Settings").click()


def fulfil(path: str, *answers: Callable[[Route], None]) -> Callable[[Page], None]:
    """The first requests for a path are answered thus, and later ones by the server."""
    left = list(answers)

    def handle(route: Route) -> None:
        if left:
            left.pop(0)(route)
        else:
            route.continue_()

    return lambda page: page.route(f"**/{path}", handle)


def test_the_key_is_asked_for_and_kept_for_the_tab(
    opened: OpenPage, picture_of: KeepPicture
) -> None:
    page = opened(key="")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_label("Key")).to_be_focused()
    picture_of(page, "key")
    dialog.get_by_label("Key").fill("a wrong one")
    dialog.get_by_label("Key").press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Incorrect key")
    dialog.get_by_label("Key").fill("key-of-the-tests")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    kept = page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]")
    assert kept == [1, 0, ""]
    page.reload()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(dialog).to_be_hidden()


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
    expect(turn.get_by_text("code2wav")).to_be_visible()
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
    assert first["audio"] == {"format": "pcm16", "voice": "ethan"}
    assert first["max_tokens"] == 24
    [picture, text] = first["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert text["text"].startswith("What is")
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1] == {"role": "assistant", "content": words}


def painted(folder: Path) -> Path:
    from PIL import Image

    path = folder / "picture.png"
    Image.linear_gradient("L").resize((320, 240)).save(path)
    return path


def illegible(page: Page) -> list[str]:
    """Texts with less contrast than WCAG AA wants."""
    found: list[str] = page.evaluate((HERE / "contrast.js").read_text())
    return found


def test_two_spoken_turns_and_an_interruption(opened: OpenPage, picture_of: KeepPicture) -> None:
    sent: list[dict[str, Any]] = []
    received: list[dict[str, Any]] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda data: sent.append(json.loads(data)))
        socket.on("framereceived", lambda data: received.append(json.loads(data)))

    page = opened(microphone=True, before=lambda page: page.on("websocket", listen))
    limit(page, 60)
    page.get_by_role("button", name="Talk").click()
    panel = page.get_by_role("region", name="Voice conversation")
    state = panel.get_by_role("status")
    expect(state).to_have_text("Hearing you")
    expect(panel.get_by_role("button", name="End")).to_be_focused()
    expect(state).to_contain_text("Speaking")
    page.wait_for_timeout(1500)
    picture_of(page, "voice-speaking")
    expect(state).to_have_text("Hearing you")
    picture_of(page, "voice-interrupted")
    expect(page.get_by_text("Interrupted").first).to_be_visible()
    expect(state).to_contain_text("Speaking")
    answered(page, page.locator(".assistant").count() - 1)
    expect(state).to_have_text("Listening")
    page.locator(".assistant").last.locator("summary").click()
    picture_of(page, "voice-end")

    kinds = [event["type"] for event in received]
    assert "error" not in kinds
    assert kinds.count("input_audio_buffer.committed") >= 2
    [cut] = [e for e in sent if e["type"] == "conversation.item.truncate"][:1]
    confirmed = next(e for e in received if e["type"] == "conversation.item.truncated")
    assert (confirmed["item_id"], confirmed["audio_end_ms"]) == (
        cut["item_id"],
        cut["audio_end_ms"],
    )
    pieces = [e for e in received if e["type"] == "response.output_audio.delta"]
    cut_off = sum(len(e["delta"]) for e in pieces if e["item_id"] == cut["item_id"]) * 0.75 / 48
    assert 500 < cut["audio_end_ms"] <= cut_off
    done = [e["response"] for e in received if e["type"] == "response.done"]
    assert done[0]["status"] == "cancelled"
    assert done[-1]["status"] in ("completed", "incomplete")
    assert {span["stage"] for span in done[-1]["timeline"]} >= {"thinker", "talker_ar", "code2wav"}
    assert len([e for e in sent if e["type"] == "input_audio_buffer.append"]) > 200
    appended = [e for e in sent if e["type"] == "input_audio_buffer.append"]
    assert {len(event["audio"]) for event in appended} == {2560}  # 40 ms at 24 kHz

    panel.get_by_role("button", name="End", exact=True).click()
    expect(panel).to_be_hidden()
    expect(page.get_by_role("button", name="Talk")).to_be_focused()
    expect(page.get_by_role("alert")).to_be_hidden()
    ask(page, "Do you remember?")  # what was said is known in writing, too
    answered(page, page.locator(".assistant").count() - 1)


def test_written_words_and_buttons_in_a_spoken_conversation(
    opened: OpenPage, picture_of: KeepPicture
) -> None:
    sent: list[dict[str, Any]] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda data: sent.append(json.loads(data)))

    page = opened(
        microphone=True, width=360, height=740, motion="reduce",
        before=lambda page: page.on("websocket", listen),
    )  # fmt: skip
    limit(page, 60)
    ask(page, "Before we talk")
    answered(page)
    page.get_by_role("button", name="Talk").click()
    state = page.get_by_role("region", name="Voice conversation").get_by_role("status")
    expect(state).to_have_text("Hearing you")
    page.get_by_role("button", name="Mute").click()
    expect(page.get_by_role("button", name="Unmute")).to_be_focused()
    expect(state).to_contain_text("Speaking")
    picture_of(page, "phone-voice")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert illegible(page) == []
    page.keyboard.press("Escape")
    expect(state).to_have_text("Listening")
    count = page.locator(".assistant").count()
    ask(page, "In writing")
    expect(page.locator(".assistant")).to_have_count(count + 1)
    expect(state).to_contain_text("Speaking")
    page.get_by_role("button", name="Stop reply").click()
    expect(state).to_have_text("Listening")
    items = [e["item"] for e in sent if e["type"] == "conversation.item.create"]
    assert [item["role"] for item in items] == ["user", "assistant", "user"]
    assert items[0]["content"] == [{"type": "input_text", "text": "Before we talk"}]
    assert items[2]["content"] == [{"type": "input_text", "text": "In writing"}]
    assert "response.cancel" in [event["type"] for event in sent]


def test_who_thinks_better_of_talking_leaves_nothing_open(opened: OpenPage) -> None:
    tracks = """() => {
      window.tracks = [];
      const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = async (wanted) => {
        await new Promise((resolve) => { window.allow = resolve; });
        const stream = await real(wanted);
        window.tracks.push(...stream.getTracks());
        return stream;
      };
    }"""
    page = opened(microphone=True)
    page.evaluate(tracks)
    page.get_by_role("button", name="Talk").click()
    expect(page.get_by_text("Connecting")).to_be_visible()
    page.get_by_role("button", name="Mute").click()
    page.get_by_role("button", name="End", exact=True).click()
    page.evaluate("window.allow()")
    page.wait_for_function("window.tracks.length && tracks.every((t) => t.readyState === 'ended')")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("button", name="Talk")).to_be_focused()


def test_a_microphone_that_is_taken_away_ends_the_conversation(opened: OpenPage) -> None:
    page = opened(microphone=True)
    page.evaluate("""() => {
      const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = async (wanted) => {
        const stream = await real(wanted);
        window.track = stream.getTracks()[0];
        return stream;
      };
    }""")
    page.get_by_role("button", name="Talk").click()
    status = page.get_by_role("region", name="Voice conversation").get_by_role("status")
    expect(status).to_have_text("Hearing you")
    page.evaluate("window.track.onended(new Event('ended'))")
    expect(page.get_by_role("alert")).to_have_text("The microphone is gone.")
    expect(page.get_by_role("button", name="Talk")).to_be_enabled()


def test_the_microphone_is_resampled_without_aliases(opened: OpenPage) -> None:
    page = opened()
    for rate in (44_100, 48_000, 96_000, 16_000):
        for hertz, gain in ((440, 1.0), (5_000, 1.0), (15_000, 0.0)):
            if hertz >= rate / 2:
                continue
            loudness = page.evaluate((HERE / "resample.js").read_text(), [rate, hertz])
            assert loudness == pytest.approx(gain * 0.5 / 2**0.5, abs=0.01), (rate, hertz)


def test_a_refused_microphone_is_explained(opened: OpenPage, picture_of: KeepPicture) -> None:
    page = opened()
    page.get_by_role("button", name="Talk").click()
    expect(page.get_by_role("alert")).to_contain_text("The microphone was refused. Allow it")
    expect(page.get_by_role("region", name="Voice conversation")).to_be_hidden()
    picture_of(page, "refused")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_without_a_secure_context_talking_is_off(opened: OpenPage) -> None:
    page = opened(host="omni.test")
    expect(page.get_by_role("button", name="Talk")).to_be_disabled()
    expect(page.get_by_text("Browsers give the microphone only to pages")).to_be_visible()


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
    assert page.locator("#transcript > li").count() == 2


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


@pytest.mark.parametrize(
    ("code", "reason", "told", "may_retry"),
    [
        (1013, "", "The server is too busy for another conversation.", True),
        (1008, "read faster", "The server refused the connection. read faster", False),
        (1001, "", "The server is going away.", True),
        (4000, "", "The connection ended with code 4000.", False),
    ],
)
def test_the_end_of_a_connection_is_explained(
    opened: OpenPage, code: int, reason: str, told: str, may_retry: bool
) -> None:
    def end(socket: WebSocketRoute) -> None:
        socket.on_message(lambda _: socket.close(code=code, reason=reason))
        socket.send(json.dumps({"type": "session.created"}))

    page = opened(microphone=True, before=lambda page: page.route_web_socket("**/realtime*", end))
    page.get_by_role("button", name="Talk").click()
    expect(page.get_by_role("alert")).to_have_text(told)
    expect(page.get_by_role("region", name="Voice conversation")).to_be_hidden()
    expect(page.get_by_role("button", name="Try again")).to_be_visible(visible=may_retry)


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
