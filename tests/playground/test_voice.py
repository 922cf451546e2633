"""Talking with the page in a real browser: turns, interruptions, and microphones that are none.

For `nox -s playground`: needs Debian's chromium and playwright, which the other sessions lack.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api")
if shutil.which("chromium") is None:
    pytest.skip("there is no chromium; Debian's package is enough", allow_module_level=True)

from person import AWKWARD_KEY, HERE, KeepPicture, OpenPage, answered, ask, illegible, limit
from playwright.sync_api import WebSocket, WebSocketRoute, expect

from families import FAMILY
from omni_server.realtime.heard import heard_text


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
    assert done[-1]["status"] in ("completed", "incomplete")
    stages = {span["stage"] for span in done[-1]["timeline"]}
    assert stages >= {"thinker", *FAMILY.speech_stages}
    assert len([e for e in sent if e["type"] == "input_audio_buffer.append"]) > 200
    appended = [e for e in sent if e["type"] == "input_audio_buffer.append"]
    assert {len(event["audio"]) for event in appended} == {2560}  # 40 ms at 24 kHz

    panel.get_by_role("button", name="End", exact=True).click()
    expect(panel).to_be_hidden()
    expect(page.get_by_role("button", name="Talk")).to_be_focused()
    expect(page.get_by_role("alert")).to_be_hidden()
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Do you remember?")  # what was said is known in writing, too
    assert asked.value.post_data_json["messages"][:-1] == known(received, sent)
    answered(page, page.locator(".assistant").count() - 1)


def known(received: list[dict[str, Any]], sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server knows of a conversation: every turn in its place, each reply as heard."""
    heard_ms = {
        e["item_id"]: e["audio_end_ms"] for e in sent if e["type"] == "conversation.item.truncate"
    }
    turns: dict[str, dict[str, Any]] = {}
    for event in received:
        match event["type"]:
            case "input_audio_buffer.committed":
                turns[event["item_id"]] = {"role": "user", "content": ""}
            case "conversation.item.input_audio_transcription.completed":
                turns[event["item_id"]]["content"] = event["transcript"]
            case "response.created":
                turns[event["response"]["id"]] = {"role": "assistant", "content": ""}
            case "response.done":
                response = event["response"]
                [text] = [item["content"][0]["transcript"] for item in response["output"]] or [""]
                [item_id] = [item["id"] for item in response["output"]] or [""]
                sent_ms = sound_ms(received, item_id)
                if response["status"] == "cancelled":  # perhaps before there was any sound
                    text = heard_text(text, heard_ms.get(item_id, sent_ms), None)
                elif item_id in heard_ms:
                    text = heard_text(text, heard_ms[item_id], sent_ms)
                turns[response["id"]]["content"] = text.strip()
    return [turn for turn in turns.values() if turn["content"]]


def sound_ms(received: list[dict[str, Any]], item_id: str) -> int:
    pieces = [e for e in received if e["type"] == "response.output_audio.delta"]
    samples = sum(len(b64decode(e["delta"])) for e in pieces if e["item_id"] == item_id) // 2
    return samples * 1000 // 24_000


def test_words_that_were_heard_are_those_of_the_server(opened: OpenPage) -> None:
    page = opened()
    texts = [
        "",
        "one",
        "The quick brown fox jumps.",
        "今天天气很好, said he",
        "a\nb  c",
        "\U0001f600 x y",
    ]
    cases = [[t, ms, w] for t in texts for ms in (0, 90, 400, 999, 1_000) for w in (None, 0, 1_000)]
    found = page.evaluate(
        """async (cases) => {
          const { heardText } = await import("/playground/heard.js");
          return cases.map((one) => heardText(...one));
        }""",
        cases,
    )
    assert found == [heard_text(*case) for case in cases]


def test_history_is_in_order_and_of_a_reply_has_what_was_heard(opened: OpenPage) -> None:
    """The transcription comes after the reply, whose sound the person ends after a while."""
    spoken = " ".join(f"word{number}" for number in range(100))
    events = [
        {"type": "session.updated"},
        {"type": "input_audio_buffer.committed", "item_id": "u"},
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_audio_transcript.delta", "delta": spoken},
        {
            "type": "response.output_audio.delta",
            "item_id": "a",
            "content_index": 0,
            "delta": b64encode(bytes(2 * 24_000 * 20)).decode(),
        },
        {"type": "response.done", "response": {"id": "r", "status": "completed"}},
        {
            "type": "conversation.item.input_audio_transcription.completed",
            "item_id": "u",
            "transcript": "Hello",
        },
    ]

    def answer(socket: WebSocketRoute) -> None:
        left = list(events)

        def more(_: str | bytes) -> None:
            while left:
                socket.send(json.dumps(left.pop(0)))

        socket.on_message(more)
        socket.send(json.dumps({"type": "session.created"}))

    page = opened(
        microphone=True, before=lambda page: page.route_web_socket("**/realtime*", answer)
    )
    limit(page, 8)
    page.get_by_role("button", name="Talk").click()
    expect(page.get_by_role("status")).to_contain_text("Speaking")
    page.wait_for_timeout(2_000)
    page.get_by_role("button", name="End", exact=True).click()
    shown = page.locator(".assistant .words").inner_text()
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "And then?")
    [first, second, third] = asked.value.post_data_json["messages"]
    assert (first, third["content"]) == ({"role": "user", "content": "Hello"}, "And then?")
    assert second == {"role": "assistant", "content": shown}
    assert spoken.startswith(shown + " ")
    assert 1 <= len(shown.split()) <= 25  # of five a second


MICROPHONE_IN_WINDOW = """() => {
  const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (wanted) => {
    const stream = await real(wanted);
    window.track = stream.getTracks()[0];
    return stream;
  };
}"""


def test_a_key_that_names_no_subprotocol_opens_a_conversation(opened: OpenPage) -> None:
    page = opened(microphone=True, key=AWKWARD_KEY)
    page.get_by_role("button", name="Talk").click()
    expect(page.get_by_role("status")).to_have_text("Hearing you")


def test_a_connection_that_cannot_be_made_closes_the_microphone(opened: OpenPage) -> None:
    page = opened(microphone=True)
    page.evaluate(MICROPHONE_IN_WINDOW)
    page.evaluate("""() => {
      window.WebSocket = class { constructor() { throw new SyntaxError("no such name"); } };
    }""")
    page.get_by_role("button", name="Talk").click()
    told = "The voice connection cannot be opened: no such name"
    expect(page.get_by_role("alert")).to_have_text(told)
    assert page.evaluate("window.track.readyState") == "ended"
    expect(page.get_by_role("button", name="Talk")).to_be_enabled()


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
    limit(page, 20)
    ask(page, "Before we talk")
    answered(page)
    limit(page, 1_000)  # which are still being written when they are stopped
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
    page.evaluate("""() => new Promise((resolve) => {
      const ended = () => window.tracks[0]?.readyState === "ended";
      const check = () => ended() ? resolve() : setTimeout(check, 20);
      check();
    })""")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("button", name="Talk")).to_be_focused()


def test_a_microphone_that_is_taken_away_ends_the_conversation(opened: OpenPage) -> None:
    page = opened(microphone=True)
    page.evaluate(MICROPHONE_IN_WINDOW)
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
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_without_a_secure_context_talking_is_off(opened: OpenPage) -> None:
    page = opened(host="omni.test")
    expect(page.get_by_role("button", name="Talk")).to_be_disabled()
    expect(page.get_by_text("Browsers give the microphone only to pages")).to_be_visible()


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
