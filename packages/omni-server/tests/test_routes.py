"""Health, liveness, metrics and the model list."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from openai.types import Model

from omni_core.errors import NotReadyError
from omni_core.media import wav_bytes
from omni_core.specs import Transcription, VoiceCloning


async def test_health_is_ready_only_when_every_stage_is(local):
    response = await local.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ready",
        "stages": {
            "thinker": {"pid": 10, "state": "ready", "restarts": 0},
            "voice": {"pid": 11, "state": "ready", "restarts": 1},
        },
    }
    local.pipeline.stage_state = "dead"
    response = await local.http.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "degraded"
    assert response.json()["stages"]["voice"]["state"] == "dead"
    assert (await local.http.get("/live")).status_code == 200


async def test_models_list_and_retrieve_with_a_slash(local, kit):
    listed = (await local.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (kit.MODEL, "model", "omni")
    assert model["voices"] == ["Ethan", "Chelsie"]
    assert model["sample_rate"] == kit.RATE
    assert (await local.http.get(f"/v1/models/{kit.MODEL}")).json() == model
    response = await local.http.get("/v1/models/lab%2Fparrot")
    assert response.json() == model
    response = await local.http.get("/v1/models/lab/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_a_pipeline_without_speech_lists_no_voices(local):
    local.pipeline.modalities = ("text",)
    [model] = (await local.http.get("/v1/models")).json()["data"]
    assert model["output_modalities"] == ["text"]
    assert (model["voices"], model["default_voice"], model["sample_rate"]) == ([], None, None)
    assert model["audio_formats"] == {"chat": [], "chat_stream": [], "speech": []}
    can = model["capabilities"]
    assert (can["audio_output"], can["speech"]) == (False, False)
    assert "/v1/audio/speech" not in model["supported_endpoints"]


CAPABILITIES = {
    "tools": {"tools": True},
    "grammars": {"response_format": True},
    "logprobs": {"logprobs": True},
    "completes_prompts": {"completions": True},
    "reads_aloud": {"speech": True, "voice_cloning": True},
    "clones_voices": {"voice_cloning": True},
}
CLONING = {"clones_voices": VoiceCloning(sample_rates=(16_000,))}


async def test_a_model_says_what_it_can_do_and_where(local):
    able = replace(
        local.pipeline.info,
        transcription=Transcription(messages=lambda part, task: ()),
        **{**dict.fromkeys(CAPABILITIES, True), **CLONING},
    )
    local.pipeline.info = able
    model = Model.model_validate((await local.http.get("/v1/models")).json()["data"][0])
    said = model.model_dump()
    always = {"audio_output": True, "transcription": True}
    everything = {k: v for told in CAPABILITIES.values() for k, v in told.items()} | always
    assert said["capabilities"] == everything
    assert said["audio_formats"]["chat"] == ["wav", "pcm16", "flac", "mp3", "opus", "aac"]
    assert said["audio_formats"]["chat_stream"] == ["pcm16"]
    assert said["audio_formats"]["speech"] == ["mp3", "opus", "aac", "flac", "wav", "pcm"]
    assert set(said["supported_endpoints"]) == {
        *BODIES,
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    }
    for name, told in CAPABILITIES.items():
        local.pipeline.info = replace(able, **{name: None if name in CLONING else False})
        less = (await local.http.get(f"/v1/models/{model.id}")).json()
        assert less["capabilities"] == {**everything, **dict.fromkeys(told, False)}


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/audio/speech": {"input": "Hi"},
}


async def test_a_route_that_is_not_listed_refuses_the_model(local):
    info = local.pipeline.info
    for able in (True, False):
        local.pipeline.info = replace(info, reads_aloud=able, completes_prompts=able)
        listed = (await local.http.get("/v1/models")).json()["data"][0]["supported_endpoints"]
        for path, body in BODIES.items():
            response = await local.http.post(path, json=body)
            assert (response.status_code == 200) == (path in listed), path
        sent = {"file": ("a.wav", wav_bytes(np.ones(1600, "f4"), 16_000))}
        response = await local.http.post("/v1/audio/transcriptions", files=sent)
        assert response.status_code == 400
        assert "/v1/audio/transcriptions" not in listed


async def test_metrics_count_requests_latencies_tokens_and_stages(local):
    await local.chat()
    await local.chat(modalities=["audio"])
    await local.chat(temperature=9)
    text = (await local.http.get("/metrics")).text
    assert 'omni_stage_processes_ready{stage="voice"} 1.0' in text
    assert 'omni_stage_restarts{stage="voice"} 1.0' in text
    for line in (
        'omni_requests_total{status="200"} 2.0',
        'omni_requests_total{status="400"} 1.0',
        "omni_requests_in_flight 0.0",
        'omni_time_to_first_token_seconds_count{output="text"} 1.0',
        'omni_time_to_first_token_seconds_count{output="audio"} 1.0',
        'omni_time_to_text_done_seconds_count{output="audio"} 1.0',
        "omni_time_to_audio_done_seconds_count 1.0",
        'omni_media_preparation_seconds_count{media="audio+vision"} 2.0',
        'omni_stage_request_seconds_count{stage="voice"} 2.0',
        'omni_http_responses_total{method="POST",route="/v1/chat/completions",status="400"} 1.0',
        "omni_time_to_first_audio_seconds_count 1.0",
        "omni_request_duration_seconds_count 3.0",
        'omni_completion_tokens_total{kind="audio"} 14.0',
        'omni_completion_tokens_total{kind="text"} 10.0',
        "omni_prompt_tokens_total 22.0",
        'omni_stage_running{stage="thinker"} 1.0',
        'omni_stage_running{stage="voice"} 0.0',
        'omni_stage_kv_pages{stage="thinker"} 7.0',
        'omni_relay_bytes_lent{process="talker"} 5.0',
        'omni_edge_transport{source="thinker",target="voice",transport="cuda-ipc"} 1.0',
    ):
        assert line in text.splitlines()


async def test_metrics_without_stages(local, monkeypatch):
    async def not_ready():
        raise NotReadyError("starting")

    monkeypatch.setattr(local.pipeline, "stats", not_ready)
    response = await local.http.get("/metrics")
    assert response.status_code == 200
    assert "omni_stage_running" not in response.text
