"""The code2wav stage as the pipeline builds it: chunks of codes in, audio events out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.errors import ConfigError, StageError
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, InboxItem, Scheduler, Work
from omni_core.specs import Ref, StageConfig, StageContext
from omni_core.testing.fakes import RecordingOutbox, running
from omni_core.types import FloatArray, IntArray, RequestParams
from omni_qwen3.code2wav.config import load_config
from omni_qwen3.code2wav.model import load_model
from omni_qwen3.code2wav.stage import build

FACTORY = Ref("omni_qwen3.code2wav.stage:build")


def build_stage(checkpoint: str, **options: Any) -> Scheduler:
    return build(
        StageContext(
            stage=StageConfig(name="code2wav", factory=FACTORY, options=options),
            model_path=checkpoint,
            device="cpu",
            dtype="float32",
            ar_engine="torch",
            report=lambda message: None,
        )
    )


def random_codes(frames: int, seed: int = 0) -> IntArray:
    return np.random.default_rng(seed).integers(64, size=(16, frames))


def opened(request_id: str) -> Work:
    return Work(request_id, RequestParams(modalities=("audio",)), {})


def reply(request_id: str, codes: IntArray, chunk_frames: int) -> list[InboxItem]:
    starts = range(0, codes.shape[1], chunk_frames)
    chunks = [Chunk(request_id, "talker_ar", codes[:, i : i + chunk_frames]) for i in starts]
    return [opened(request_id), *chunks, ChunksDone(request_id, "talker_ar")]


def heard(outbox: RecordingOutbox, request_id: str) -> list[FloatArray]:
    events = [call.value for call in outbox.of(request_id) if call.method == "emit"]
    assert {event.sample_rate for event in events} <= {24000}
    return [event.samples for event in events]


def whole(checkpoint: str, codes: IntArray) -> FloatArray:
    model = load_model(checkpoint, device="cpu", dtype="float32", report=lambda message: None)
    return model.decode(torch.from_numpy(codes)).numpy()


def test_two_replies_at_once_each_sound_as_when_decoded_whole(tiny_checkpoint: str) -> None:
    codes = {"a": random_codes(20, seed=1), "b": random_codes(13, seed=2)}
    items = [item for name in codes for item in reply(name, codes[name], 3)]
    scheduler = build_stage(tiny_checkpoint)
    with running(scheduler, items) as (_, outbox):
        for name in codes:
            outbox.wait_for("complete", name)
    for name, expected in codes.items():
        chunks = heard(outbox, name)
        assert [chunk.size for chunk in chunks[:2]] == [1365, 8 * 1920]  # nineteen waited
        assert max(chunk.size for chunk in chunks) <= 8 * 1920
        wav = whole(tiny_checkpoint, expected)
        np.testing.assert_allclose(np.concatenate(chunks), wav, rtol=0, atol=2e-4)
    assert scheduler.stats()["running"] == 0


def test_the_first_frame_is_heard_before_the_second_exists(tiny_checkpoint: str) -> None:
    first = Chunk("a", "talker_ar", random_codes(1))
    with running(build_stage(tiny_checkpoint), [opened("a"), first]) as (_, outbox):
        event = outbox.wait_for("emit", "a").value
    assert event.samples.shape == (1365,)


def test_window_mode_speaks_only_window_by_window(tiny_checkpoint: str) -> None:
    codes = random_codes(310)
    scheduler = build_stage(tiny_checkpoint, decode="window", steady_frames=64)
    with running(scheduler, reply("a", codes, 64)) as (_, outbox):
        outbox.wait_for("complete", "a")
    sizes = [chunk.size for chunk in heard(outbox, "a")]
    assert sizes == [300 * 1920 - 555, 10 * 1920 - 555]


def test_a_reply_without_frames_is_silent(tiny_checkpoint: str) -> None:
    done = ChunksDone("a", "talker_ar")
    with running(build_stage(tiny_checkpoint), [opened("a"), done]) as (_, outbox):
        outbox.wait_for("complete", "a")
    assert heard(outbox, "a") == []


def test_an_aborted_reply_is_forgotten_and_its_id_free_again(tiny_checkpoint: str) -> None:
    scheduler, codes = build_stage(tiny_checkpoint), random_codes(5)
    cut_short = [opened("a"), Chunk("a", "talker_ar", random_codes(9, seed=9)), Abort("a")]
    with running(scheduler, [*cut_short, *reply("a", codes, 5)]) as (_, outbox):
        outbox.wait_for("complete", "a")
    np.testing.assert_allclose(
        np.concatenate(heard(outbox, "a")), whole(tiny_checkpoint, codes), rtol=0, atol=2e-4
    )
    assert scheduler.stats()["running"] == 0


def test_codes_of_another_codec_fail_their_reply(tiny_checkpoint: str) -> None:
    wrong = Chunk("a", "talker_ar", np.zeros((4, 1), np.int64))
    scheduler = build_stage(tiny_checkpoint)
    with running(scheduler, [opened("a"), wrong]) as (_, outbox):
        error = outbox.wait_for("fail", "a").value
    assert isinstance(error, StageError)
    assert "16" in error.message


def test_every_wrong_option_is_named(tiny_checkpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_stage(tiny_checkpoint, decode="fast", steady_frames=0, speed=2)
    unknown, decode, frames = caught.value.problems
    assert "'speed'" in unknown
    assert "stateful or window" in decode
    assert "above 0" in frames
    with pytest.raises(ConfigError, match="at most steady_frames"):
        build_stage(tiny_checkpoint, initial_frames=9)


def test_more_replies_than_slots_wait_and_all_are_heard(tiny_checkpoint: str) -> None:
    codes = {name: random_codes(3, seed=ord(name)) for name in "abcde"}
    items = [item for name in codes for item in reply(name, codes[name], 1)]
    scheduler = build_stage(tiny_checkpoint, max_replies=2)
    with running(scheduler, items) as (_, outbox):
        for name in codes:
            outbox.wait_for("complete", name)
    for name, expected in codes.items():
        wav = np.concatenate(heard(outbox, name))
        np.testing.assert_allclose(wav, whole(tiny_checkpoint, expected), rtol=0, atol=2e-4)


def test_wrong_codes_fail_alone_in_a_shared_push(tiny_checkpoint: str) -> None:
    good = random_codes(4)
    wrong = [opened("bad"), Chunk("bad", "talker_ar", np.full((16, 1), 64))]
    scheduler = build_stage(tiny_checkpoint)
    with running(scheduler, [*wrong, *reply("good", good, 2)]) as (_, outbox):
        error = outbox.wait_for("fail", "bad").value
        outbox.wait_for("complete", "good")
    assert "0 to 63, not 64 to 64" in error.message
    np.testing.assert_allclose(
        np.concatenate(heard(outbox, "good")), whole(tiny_checkpoint, good), rtol=0, atol=2e-4
    )
    assert scheduler.stats()["running"] == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda config: config.pop("code2wav_config"), "--variant text"),
        (lambda config: config["code2wav_config"].pop("decoder_dim"), "decoder_dim"),
        (lambda config: config["code2wav_config"].update(hidden_act="relu"), "silu"),
    ],
)
def test_an_unknown_vocoder_is_refused(
    tiny_checkpoint: str, tmp_path: Path, change: Any, expected: str
) -> None:
    config = json.loads((Path(tiny_checkpoint) / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=expected):
        load_config(str(tmp_path))


def test_the_published_config_is_understood(tmp_path: Path) -> None:
    """Its rope_theta stands beside the other fields, as before transformers 5."""
    published = {
        "codebook_size": 2048, "num_quantizers": 16, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000,
        "sliding_window": 72, "upsampling_ratios": [2, 2], "upsample_rates": [8, 5, 4, 3],
        "decoder_dim": 1536, "hidden_act": "silu", "attention_bias": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"code2wav_config": published}))
    config = load_config(str(tmp_path))
    assert (config.head_dim, config.samples_per_frame, config.lookahead_samples) == (64, 1920, 555)
    assert config.rope_theta == 10000
