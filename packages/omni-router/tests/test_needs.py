"""What a request needs, from bodies as clients write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_router.needs import Needs, of_json, of_path

HELLO = {"role": "user", "content": "hello"}


def of(body: Any) -> Needs:
    return of_json(Needs(), json.dumps(body).encode())


def test_the_model_is_read() -> None:
    assert of({"model": "m"}).model == "m"
    assert of({"model": 3}).model is None


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_needs_nothing(body: bytes) -> None:
    assert of_json(Needs(capability="speech"), body) == Needs(capability="speech")


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "input_audio", "input_audio": {}}, "audio"),
        ({"type": "image_url", "image_url": {"url": "data:"}}, "image"),
        ({"type": "video_url", "video_url": {"url": "data:"}}, "video"),
    ],
)
def test_media_in_messages_is_input(part: dict[str, Any], kind: str) -> None:
    found = of({"messages": [HELLO, {"role": "user", "content": [{"type": "text"}, part]}]})
    assert found.inputs == {kind}


def test_text_needs_no_input() -> None:
    assert of({"messages": [HELLO]}).inputs == frozenset()


@pytest.mark.parametrize("field", ["audios", "images", "videos"])
def test_media_in_lists_is_input(field: str) -> None:
    assert of({field: ["http://x"]}).inputs == {field[:-1]}
    assert of({field: []}).inputs == frozenset()


def test_audio_out_is_a_modality() -> None:
    assert of({"modalities": ["text", "audio"]}).outputs == {"audio"}
    assert of({"modalities": ["text"]}).outputs == frozenset()
    assert of({"modalities": "audio"}).outputs == frozenset()


def test_the_voice_is_read_where_chat_and_speech_have_it() -> None:
    assert of({"voice": "Mine"}).voice == "mine"
    assert of({"audio": {"voice": "Mine"}}).voice == "mine"
    assert of({"voice": {"id": "Mine"}}).voice == "mine"


def test_turns_of_a_conversation_share_a_prefix() -> None:
    system = {"role": "system", "content": "be brief"}
    first = of({"messages": [system, HELLO]})
    answer = {"role": "assistant", "content": "hi"}
    second = of({"messages": [system, HELLO, answer, {"role": "user", "content": "more"}]})
    other = of({"messages": [system, {"role": "user", "content": "bye"}]})
    assert first.prefix == second.prefix is not None
    assert first.prefix != other.prefix


def test_a_prefix_cannot_be_made_by_moving_text_between_messages() -> None:
    one = of({"messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}]})
    two = of({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "bc"}]})
    assert one.prefix != two.prefix


def test_messages_without_a_user_have_no_prefix() -> None:
    assert of({"messages": [{"role": "system", "content": "x"}]}).prefix is None
    assert of({"messages": "x"}).prefix is None
    assert of({"messages": [3]}).prefix is None


def test_a_spoken_reply_is_named_by_its_id() -> None:
    reply = {"role": "assistant", "audio": {"id": "audio_1"}}
    assert of({"messages": [HELLO, reply]}).names_audio
    assert not of({"messages": [HELLO]}).names_audio
    assert not of({"messages": [HELLO], "audio": {"id": "x"}}).names_audio


def test_the_session_is_what_the_client_calls_it() -> None:
    path = "/v1/chat/completions"
    assert of_path(path, {"x-session-id": "a"}, {}).session == "a"
    assert of({"prompt_cache_key": "b"}).session == "b"
    assert of({"conversation": {"id": "c"}}).session == "c"
    known = of_path(path, {"x-session-id": "a"}, {})
    assert of_json(known, b'{"prompt_cache_key": "b"}').session == "a"


@pytest.mark.parametrize(
    ("path", "capability"),
    [
        ("/v1/audio/speech", "speech"),
        ("/v1/audio/transcriptions", "transcription"),
        ("/v1/audio/translations", "transcription"),
        ("/v1/completions", "completions"),
        ("/v1/realtime", "realtime"),
        ("/v1/chat/completions", None),
    ],
)
def test_routes_need_capabilities(path: str, capability: str | None) -> None:
    assert of_path(path, {}, {}).capability == capability


def test_realtime_names_its_model_in_the_query() -> None:
    assert of_path("/v1/realtime", {}, {"model": "m"}).model == "m"
    assert of_path("/v1/chat/completions", {}, {"model": "m"}).model is None


@pytest.mark.parametrize(
    ("given", "priority"), [("5", 5), ("-3", -3), ("1e3", 0), ("", 0), ("9999", 100)]
)
def test_the_priority_is_a_bounded_integer(given: str, priority: int) -> None:
    assert of_path("/", {"x-priority": given}, {}).priority == priority
