"""POST /v1/chat/completions without streaming: what is asked of the pipeline, what comes back."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import replace

import numpy as np
import pytest

from omni_core.types import Finished, MediaPart, SamplingParams, TextDelta, TextPart, Usage

PNG = b"\x89PNG not really"
DATA_PNG = "data:image/png;base64," + base64.b64encode(PNG).decode()
WAV_B64 = base64.b64encode(b"RIFF....").decode()


async def test_text_reply_has_openai_shape(local, kit):
    body = (await local.chat()).json()
    assert body["object"] == "chat.completion"
    assert body["model"] == kit.MODEL
    [choice] = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {
        "role": "assistant", "content": "Héllo there", "refusal": None, "audio": None,
    }  # fmt: skip
    assert body["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 12,
        "total_tokens": 23,
        "prompt_tokens_details": {"audio_tokens": 4, "image_tokens": 2, "cached_tokens": 3},
        "completion_tokens_details": {"audio_tokens": 7, "text_tokens": 5, "reasoning_tokens": 0},
    }
    assert "timeline" not in body


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"], ["audio", "text"]])
async def test_audio_reply_is_one_choice_with_transcript(local, kit, modalities):
    body = (
        await local.chat(modalities=modalities, audio={"voice": "ethan", "format": "wav"})
    ).json()
    [choice] = body["choices"]
    assert choice["message"]["content"] is None
    audio = choice["message"]["audio"]
    assert audio["transcript"] == "Héllo there"
    assert audio["expires_at"] > body["created"]
    assert audio["finish_reason"] == "stop"
    with wave.open(io.BytesIO(base64.b64decode(audio["data"]))) as file:
        assert file.getframerate() == kit.RATE == audio["sample_rate"]
        assert file.getnframes() == 480 + 31 + 960
    assert local.pipeline.requests[0].params.modalities == ("text", "audio")
    assert local.pipeline.requests[0].params.voice == "Ethan"


@pytest.mark.parametrize(
    ("name", "magic"),
    [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS"), ("aac", b"\xff\xf1")],
)
async def test_audio_comes_in_the_asked_format(local, name, magic):
    body = (await local.chat(modalities=["audio"], audio={"format": name})).json()
    data = base64.b64decode(body["choices"][0]["message"]["audio"]["data"])
    assert data.startswith(magic)


async def test_mp3_and_pcm16(local):
    body = (await local.chat(modalities=["audio"], audio={"format": "mp3"})).json()
    mp3 = base64.b64decode(body["choices"][0]["message"]["audio"]["data"])
    assert mp3[:3] == b"ID3" or (mp3[0] == 0xFF and mp3[1] & 0xE0 == 0xE0)
    body = (await local.chat(modalities=["audio"], audio={"format": "pcm16"})).json()
    pcm = np.frombuffer(base64.b64decode(body["choices"][0]["message"]["audio"]["data"]), "<i2")
    wanted = np.sin(np.arange(1471) * 0.05) * 0.8
    np.testing.assert_allclose(pcm / 32768, wanted, atol=1e-4)


async def test_reply_of_only_the_end_token(local):
    local.pipeline.script = lambda request: [Finished(finish_reason="stop", usage=Usage())]
    for modalities in (["text"], ["text", "audio"]):
        message = (await local.chat(modalities=modalities)).json()["choices"][0]["message"]
        assert message["content"] == ""
        assert message["audio"] is None


async def test_timeline_on_request(local):
    body = (await local.chat(include_timeline=True)).json()
    assert body["timeline"][1] == {
        "stage": "voice", "start_s": 0.1, "first_output_s": 0.2, "end_s": 0.5,
    }  # fmt: skip


async def test_content_parts_keep_their_order(local):
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": DATA_PNG, "detail": "high"}},
        {"type": "input_audio", "input_audio": {"data": WAV_B64, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "https://example.com/a.mp3"}},
        {"type": "video_url", "video_url": "http://example.com/v.mp4"},
        {"type": "image_url", "image_url": DATA_PNG},
        {"type": "text", "text": "and tell"},
    ]
    assert (await local.chat(messages=[{"role": "user", "content": content}])).status_code == 200
    [message] = local.pipeline.requests[0].messages
    assert message.content == (
        TextPart(text="look"),
        MediaPart(kind="image", data=PNG, param="messages[0].content[1]"),
        MediaPart(kind="audio", data=b"RIFF....", param="messages[0].content[2]"),
        MediaPart(kind="audio", url="https://example.com/a.mp3", param="messages[0].content[3]"),
        MediaPart(kind="video", url="http://example.com/v.mp4", param="messages[0].content[4]"),
        MediaPart(kind="image", data=PNG, param="messages[0].content[5]"),
        TextPart(text="and tell"),
    )


@pytest.mark.parametrize(
    ("media", "param", "kind"),
    [
        ({"images": [DATA_PNG]}, "images[0]", "image"),
        ({"videos": ["http://example.com/v.mp4"]}, "videos[0]", "video"),
        ({"messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": DATA_PNG}]},
            {"role": "user", "content": "and?"},
        ]}, "messages[0].content[0]", "image"),
    ],
)  # fmt: skip
async def test_media_that_the_model_does_not_take_are_refused(local, kit, media, param, kind):
    local.pipeline.info = replace(local.pipeline.info, input_modalities=("text", "audio"))
    error = kit.error_of(await local.chat(**media), 400)
    assert error["param"] == param
    assert f"the served model takes no {kind}; it takes text, audio." in error["message"]
    assert local.pipeline.requests == []


async def test_top_level_media_go_in_front_of_the_last_user_message(local):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": "second"},
    ]
    media = {
        "videos": ["http://h/v.mp4"],
        "images": [DATA_PNG, "http://h/i.png"],
        "audios": ["http://h/a.wav"],
    }
    assert (await local.chat(messages=messages, **media)).status_code == 200
    got = local.pipeline.requests[0].messages
    assert [m.role for m in got] == ["system", "user", "assistant", "user"]
    assert got[1].content == (TextPart(text="first"),)
    assert got[3].content == (
        MediaPart(kind="image", data=PNG, param="images[0]"),
        MediaPart(kind="image", url="http://h/i.png", param="images[1]"),
        MediaPart(kind="audio", url="http://h/a.wav", param="audios[0]"),
        MediaPart(kind="video", url="http://h/v.mp4", param="videos[0]"),
        TextPart(text="second"),
    )


async def test_sampling_and_media_options_arrive(local):
    response = await local.chat(
        max_completion_tokens=9, max_tokens=9, temperature=0, top_p=1, top_k=-1, min_p=0.1, seed=-5,
        stop="END", presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.1,
        logit_bias={"17": -100}, ignore_eos=True, min_tokens=9, stop_token_ids=[4],
        stage_params={"voice": {"temperature": 0, "max_tokens": 60, "stop": ["a", "b"]},
                      "thinker": None},
        use_audio_in_video=True, video_fps=2, video_max_frames=8, min_pixels=4, max_pixels=9,
        total_pixels=100,
    )  # fmt: skip
    assert response.status_code == 200, response.text
    params = local.pipeline.requests[0].params
    assert params.sampling == SamplingParams(
        max_tokens=9, temperature=0.0, top_p=1.0, top_k=-1, min_p=0.1, seed=-5, stop=("END",),
        presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=1.1,
        logit_bias={17: -100.0}, ignore_eos=True, min_tokens=9, stop_token_ids=(4,),
    )  # fmt: skip
    voice = SamplingParams(temperature=0.0, max_tokens=60, stop=("a", "b"))
    assert params.stage_params == {"voice": voice, "thinker": SamplingParams()}
    media = params.media
    assert (media.use_audio_in_video, media.video_fps, media.video_max_frames) == (True, 2.0, 8)
    assert (media.min_pixels, media.max_pixels, media.total_pixels) == (4, 9, 100)


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
    ],
)
async def test_either_name_limits_the_reply(local, limits, limit):
    assert (await local.chat(**limits)).status_code == 200
    assert local.pipeline.requests[0].params.sampling.max_tokens == limit


@pytest.mark.parametrize("label", ["wav", "mp3", "MP3", "webm", None])
@pytest.mark.parametrize("prefix", ["", "data:audio/mpeg;base64,"])
async def test_input_audio_is_what_its_bytes_are(local, label, prefix):
    """The label is a hint that nobody needs; a prefix by mistake is no part of the data."""
    heard = {"data": prefix + WAV_B64, **({"format": label} if label else {})}
    part = {"type": "input_audio", "input_audio": heard}
    assert (await local.chat(messages=[{"role": "user", "content": [part]}])).status_code == 200
    [got] = local.pipeline.requests[0].messages[0].content
    assert got == MediaPart(kind="audio", data=b"RIFF....", param="messages[0].content[0]")


async def test_unset_fields_stay_unset_and_null_equals_absent(local):
    names = [
        "modalities", "audio", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "temperature", "top_p", "top_k", "seed", "stop", "user", "tools", "tool_choice", "n",
        "logit_bias", "response_format", "logprobs", "top_logprobs", "stage_params", "images",
        "audios", "videos", "use_audio_in_video", "video_fps", "include_timeline", "functions",
        "function_call", "metadata", "store", "parallel_tool_calls", "reasoning_effort", "model",
    ]  # fmt: skip
    assert (
        await local.chat(**dict.fromkeys(names), someone_elses_extension={"a": 1})
    ).status_code == 200
    params = local.pipeline.requests[0].params
    assert params.sampling == SamplingParams()
    assert params.modalities == ("text",)
    assert params.voice is None


async def test_harmless_defaults_of_unsupported_fields_pass(local):
    response = await local.chat(
        n=1, tools=[], tool_choice="none", logprobs=False, top_logprobs=0,
        response_format={"type": "text"}, parallel_tool_calls=True, store=False,
    )  # fmt: skip
    assert response.status_code == 200, response.text


async def test_earlier_spoken_reply_is_named_by_its_id(local):
    audio = (await local.chat(modalities=["audio"])).json()["choices"][0]["message"]["audio"]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "audio": {"id": audio["id"]}},
        {"role": "user", "content": "Again"},
    ]
    assert (await local.chat(messages=messages)).status_code == 200
    assert local.pipeline.requests[1].messages[1].content == (TextPart(text="Héllo there"),)
    messages[1] = {"role": "assistant", "audio": {"id": "audio_gone"}}
    assert (await local.refused(400, messages=messages))["param"] == "messages[1].audio.id"


async def test_length_is_reported(local):
    finished = Finished(finish_reason="length", usage=Usage(text_tokens=1))
    local.pipeline.script = lambda request: [TextDelta(text="a"), finished]
    body = (await local.chat(max_tokens=1)).json()
    assert body["choices"][0]["finish_reason"] == "length"


async def test_request_id_is_kept_and_echoed(local):
    headers = {"x-request-id": "trace-7"}
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    response = await local.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers["x-request-id"] == "trace-7"
    assert local.pipeline.requests[0].request_id == "trace-7"
