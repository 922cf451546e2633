"""What the Thinker's and Talker's runners keep so that KV can be shared, or lost and made anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omni_core.engine.base import Engine, EngineRequest
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig
from omni_core.scheduler.base import Work
from omni_core.specs import StageConfig, StageContext
from omni_core.types import RequestParams, SamplingParams, Usage
from omni_qwen3 import talker, thinker
from omni_qwen3.config import OmniConfig, load_config
from omni_qwen3.defaults import talker_defaults, thinker_defaults

PICTURE_ROWS = 40
FRAMES = 40
SPEECH = ("text", "audio")


class Sent:
    """An `Outbox` that keeps conditioning, frames and usage by request."""

    def __init__(self) -> None:
        self.conditioning: dict[str, Any] = {}
        self.frames: dict[str, list[Any]] = {}
        self.usage: dict[str, Usage] = {}

    def send(self, request_id: str, payload: Any, *, target: str | None = None) -> None:
        if target == "talker_ar":
            self.conditioning[request_id] = payload

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        if target == "code2wav":
            self.frames.setdefault(request_id, []).append(data)

    def stream_done(self, request_id: str) -> None:
        pass

    def emit(self, request_id: str, event: Any) -> None:
        pass

    def done(self, request_id: str, usage: Usage | None = None, **_: Any) -> None:
        self.usage[request_id] = usage or Usage()

    def complete(self, request_id: str, **_: Any) -> None:
        raise AssertionError("no terminal stage here")

    def released(self, request_id: str) -> None:
        raise AssertionError("nothing is aborted here")

    def fail(self, request_id: str, error: Any) -> None:
        raise AssertionError(error)


def context(model_path: str, name: str) -> StageContext:
    return StageContext(
        stage=StageConfig(name=name, factory=thinker.build),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


@pytest.fixture(scope="module")
def config(tiny_checkpoint: str) -> OmniConfig:
    return load_config(tiny_checkpoint)


@pytest.fixture(scope="module")
def thinker_runner(tiny_checkpoint: str) -> thinker.ThinkerRunner:
    return thinker.load_runner(context(tiny_checkpoint, "thinker"))


@pytest.fixture(scope="module")
def talker_runner(tiny_checkpoint: str) -> talker.TalkerRunner:
    return talker.load_runner(context(tiny_checkpoint, "talker_ar"))


def prompt(config: OmniConfig, *, picture: int, question: int) -> dict[str, Any]:
    """A picture, the same for the same number, and a question."""
    start, end = config.im_start_token_id, config.im_end_token_id
    head = [start, config.user_token_id, 7]
    ids = [*head, *[config.thinker.image_token_id] * PICTURE_ROWS, question, end]
    ids += [start, config.assistant_token_id, 9]
    rows = np.arange(len(head), len(head) + PICTURE_ROWS)
    line = np.arange(len(ids), dtype=np.float32)
    generator = torch.Generator().manual_seed(picture)
    return {
        "input_ids": np.array(ids),
        "positions": np.stack([line] * 3),
        "rope_delta": 0.0,
        "media_index": rows,
        "media_embeds": torch.randn(
            PICTURE_ROWS, config.thinker.decoder.hidden_size, generator=generator
        ),
        "media_row_keys": -1 - np.arange(PICTURE_ROWS) - 1000 * picture,
    }


def think(
    engine: Engine, runner: thinker.ThinkerRunner, path: str, payload: Any, modalities: Any = SPEECH
) -> Sent:
    """One request by itself."""
    defaults, sent = thinker_defaults(path), Sent()
    stage = thinker.ThinkerStage(runner, defaults, can_speak=True, max_running=4)
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    params = RequestParams(modalities=modalities, sampling=sampling)
    request = stage.admit(Work("r", params, payload), sent)
    assert request is not None
    engine.add(request)
    while engine.runnable():
        for output in engine.step():
            stage.publish(request, output, sent)
    return sent


def test_a_spoken_reply_to_a_cached_picture_is_conditioned_as_to_a_new_one(
    thinker_runner: thinker.ThinkerRunner, config: OmniConfig, tiny_checkpoint: str
) -> None:
    def asked(picture: int, question: int, engine: Engine, modalities: Any = SPEECH) -> Sent:
        payload = prompt(config, picture=picture, question=question)
        return think(engine, thinker_runner, tiny_checkpoint, payload, modalities)

    shared = TorchEngine(thinker_runner)
    assert asked(1, 20, shared, ("text",)).conditioning == {}
    again = asked(1, 21, shared)
    other = asked(2, 21, shared)
    alone = asked(1, 21, TorchEngine(thinker_runner))
    assert again.usage["r"].cached_tokens == 32
    assert other.usage["r"].cached_tokens == alone.usage["r"].cached_tokens == 0
    rows, expected, different = (
        sent.conditioning["r"]["user_rows"] for sent in (again, alone, other)
    )
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(rows, different, atol=1e-2)


@pytest.fixture(scope="module")
def conditioning(
    thinker_runner: thinker.ThinkerRunner, config: OmniConfig, tiny_checkpoint: str
) -> Any:
    payload = prompt(config, picture=1, question=20)
    sent = think(TorchEngine(thinker_runner), thinker_runner, tiny_checkpoint, payload)
    return sent.conditioning["r"]


def speak(
    runner: talker.TalkerRunner,
    path: str,
    conditioning: Any,
    sampling: list[SamplingParams],
    engine: Engine,
) -> dict[str, Any]:
    """Codes (G, frames) of one request for each of `sampling`, all at once."""
    stage, sent = talker.TalkerStage(runner.config, talker_defaults(path)), Sent()
    requests: dict[str, EngineRequest] = {}
    for index, given in enumerate(sampling):
        params = RequestParams(modalities=SPEECH, stage_params={"talker_ar": given})
        request = stage.admit(Work(str(index), params, conditioning), sent)
        assert request is not None
        requests[str(index)] = request
        engine.add(request)
        engine.feed(str(index), {"rows": conditioning["assistant_rows"][:1]})
        engine.feed(str(index), None)
    while engine.runnable():
        for output in engine.step():
            stage.publish(requests[output.request_id], output, sent)
    return {name: np.concatenate(frames, axis=1) for name, frames in sent.frames.items()}


def drawn(temperature: float, seed: int = 0) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, seed=seed, max_tokens=FRAMES + 1, ignore_eos=True
    )


def test_speech_goes_on_after_a_retraction_as_if_there_had_been_none(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: Any
) -> None:
    kv = talker_runner.kv
    page_bytes = 2 * kv.layers * 16 * kv.kv_heads * kv.head_dim * 4
    small = TorchEngine(talker_runner, TorchEngineConfig(kv_budget_bytes=10 * page_bytes))
    asked = [drawn(0.0), drawn(0.9, seed=1), drawn(0.9, seed=2)]
    roomy = speak(talker_runner, tiny_checkpoint, conditioning, asked, TorchEngine(talker_runner))
    crowded = speak(talker_runner, tiny_checkpoint, conditioning, asked, small)
    assert small.stats().retractions >= 2
    assert {name: codes.shape[1] for name, codes in roomy.items()} == dict.fromkeys("012", FRAMES)
    assert all(np.array_equal(crowded[name], roomy[name]) for name in roomy)


@torch.inference_mode()
def test_rows_made_anew_are_the_rows_that_were_lost(
    talker_runner: talker.TalkerRunner,
    tiny_checkpoint: str,
    conditioning: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[torch.Tensor] = []
    reply_rows = talker_runner.reply_rows

    def recorded(segments: Any, places: torch.Tensor) -> torch.Tensor:
        rows.append(reply_rows(segments, places).clone())
        return rows[-1]

    monkeypatch.setattr(talker_runner, "reply_rows", recorded)
    stage = talker.TalkerStage(talker_runner.config, talker_defaults(tiny_checkpoint))
    engine = TorchEngine(talker_runner)
    params = RequestParams(stage_params={"talker_ar": drawn(0.9)})
    request = stage.admit(Work("r", params, conditioning), Sent())
    assert request is not None
    engine.add(request)
    engine.feed("r", {"rows": conditioning["assistant_rows"][:1]})
    engine.feed("r", None)
    for _ in range(FRAMES + 1):
        engine.step()
    seq = engine._residents.running["r"].seq
    newest = talker_runner._newest[seq.row].clone()
    talker_runner._newest.zero_()
    talker_runner.resume(seq)
    talker_runner.resume(seq)  # a second retraction starts from the same
    made = seq.state.rows[request.prompt_len - 1 :]
    assert len(made) == FRAMES
    assert torch.equal(made, torch.cat([r for r in rows if len(r)]))
    assert torch.equal(talker_runner._newest[seq.row], newest)


def test_a_temperature_next_to_nothing_is_greedy_in_every_group(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: Any
) -> None:
    asked = [drawn(0.0), drawn(1e-6, seed=3)]
    codes = speak(talker_runner, tiny_checkpoint, conditioning, asked, TorchEngine(talker_runner))
    assert np.array_equal(codes["0"], codes["1"])
