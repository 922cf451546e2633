"""Encoders behind their cache: what is encoded, how often, and what happens without memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.encoder.cached import CachedEncoder
from omni_core.errors import ConfigError, OmniError, OutOfMemoryError
from omni_core.media.keys import media_key
from omni_core.scheduler.base import Abort, Inbox, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.testing.fakes import RecordingOutbox, running
from omni_core.types import FloatArray, Payload, RequestParams
from omni_qwen3 import encoders
from omni_qwen3.encode_image import ImageEncoder
from omni_qwen3.pipeline import AUDIO_ENCODER, IMAGE_ENCODER

PATIENCE_S = 10.0
PATCH = 3 * 2 * 16 * 16


@dataclass(frozen=True)
class Word:
    """An item of the encoder below."""

    key: bytes
    param: str = "words"
    content: FloatArray | None = None


class Spelling:
    """An `ItemEncoder` of words. `rooms` words fit its memory at once, and no word "vast"."""

    too_large = "send shorter words"

    def __init__(self, rooms: int = 99, failure: Exception | None = None) -> None:
        self._rooms = rooms
        self._failure = failure or torch.OutOfMemoryError("CUDA out of memory.")
        self.batches: list[list[str]] = []
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def cost(self, payload: Payload) -> int:
        return len(payload["words"])

    def items(self, payload: Payload) -> list[Word]:
        return [Word(word.encode()) for word in payload["words"]]

    def encode(self, items: Sequence[Word]) -> list[str]:
        words = [item.key.decode() for item in items]
        self.batches.append(words)
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        if len(words) > self._rooms or "vast" in words:
            raise self._failure
        return [word.upper() for word in words]

    def join(self, items: Sequence[Word], made: Sequence[str]) -> Payload:
        return {"text": " ".join(made)}

    def size_bytes(self, made: str) -> int:
        return len(made)


def cached(spelling: Spelling, entries: int = 64, most: int = 1 << 20) -> CachedEncoder[Word, str]:
    return CachedEncoder(spelling, max_entries=entries, max_bytes=most)


def say(words: str, request_id: str = "r") -> Work:
    return Work(request_id, RequestParams(), {"words": words.split()})


def texts(results: Sequence[Payload | OmniError]) -> list[Any]:
    return [result["text"] if isinstance(result, dict) else type(result) for result in results]


def test_each_item_is_encoded_once_whoever_asks() -> None:
    spelling = Spelling()
    encoder = cached(spelling)
    assert texts(encoder([say("a b"), say("b c a"), say("a")])) == ["A B", "B C A", "A"]
    assert texts(encoder([say("c d")])) == ["C D"]
    assert spelling.batches == [["a", "b", "c"], ["d"]]
    stats = encoder.stats()
    assert (stats["cache_hits"], stats["cache_misses"], stats["inflight_joined"]) == (1, 4, 3)
    assert (stats["cache_entries"], stats["cache_bytes"]) == (4, 4)


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
        MemoryError(),
    ],
    ids=["card", "cpu", "cublas", "numpy"],
)
def test_a_batch_without_memory_is_halved_and_only_the_impossible_fails(
    failure: Exception,
) -> None:
    spelling = Spelling(rooms=2, failure=failure)
    encoder = cached(spelling)
    works = [say("a"), say("b"), say("c vast"), say("d"), say("e")]
    results = encoder(works)
    assert texts(results) == ["A", "B", OutOfMemoryError, "D", "E"]
    error = results[2]
    assert isinstance(error, OutOfMemoryError)
    assert (error.status, error.retryable, error.param) == (503, True, "words")
    assert "send shorter words" in error.message
    assert encoder.stats()["oom_splits"] == sum(len(batch) > 1 for batch in spelling.batches) - 2
    assert texts(encoder([say("a c")])) == ["A C"], "what did fit is kept"


def test_other_failures_are_not_taken_for_a_lack_of_memory() -> None:
    encoder = cached(Spelling(rooms=1, failure=RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        encoder([say("a"), say("b")])
    assert encoder.stats()["oom_splits"] == 0


@pytest.mark.parametrize("aborted", [True, False])
def test_a_request_that_waits_for_anothers_media_outlives_it(aborted: bool) -> None:
    """The first is aborted, or it fails, while it encodes what the second waits for."""
    spelling = Spelling()
    spelling.gate = threading.Event()
    encoder = cached(spelling)
    scheduler = SimpleScheduler(encoder, max_concurrency=2, more_stats=encoder.stats)
    first = say("a" if aborted else "a vast", "first")
    with running(scheduler, [first]) as (inbox, outbox):
        assert spelling.entered.wait(PATIENCE_S)
        inbox.put(say("a", "second"))
        until(scheduler, "inflight_joined", 1)
        if aborted:
            abort("first", inbox, outbox)
        spelling.gate.set()
        assert outbox.wait_for("send", "second").value == {"text": "A"}
        if not aborted:
            assert isinstance(outbox.wait_for("fail", "first").value, OutOfMemoryError)
    if aborted:
        assert [call.method for call in outbox.of("first")] == ["released"]
        assert spelling.batches == [["a"]]


def test_a_waiter_may_be_aborted_too() -> None:
    spelling = Spelling()
    spelling.gate = threading.Event()
    encoder = cached(spelling)
    scheduler = SimpleScheduler(encoder, max_concurrency=2, more_stats=encoder.stats)
    with running(scheduler, [say("a", "first")]) as (inbox, outbox):
        assert spelling.entered.wait(PATIENCE_S)
        inbox.put(say("a", "second"))
        until(scheduler, "inflight_joined", 1)
        abort("second", inbox, outbox)
        spelling.gate.set()
        outbox.wait_for("done", "first")
        inbox.put(say("a", "third"))
        outbox.wait_for("done", "third")
    assert [call.method for call in outbox.of("second")] == ["released"]
    assert spelling.batches == [["a"]]


def abort(request_id: str, inbox: Inbox, outbox: RecordingOutbox) -> None:
    """Have the loop know of it: it answers at once for a request that it never had."""
    inbox.put(Abort(request_id))
    inbox.put(Abort("nobody"))
    outbox.wait_for("released", "nobody")


def until(scheduler: SimpleScheduler, stat: str, value: float) -> None:
    for _ in range(int(PATIENCE_S * 1000)):
        if scheduler.stats()[stat] == value:
            return
        threading.Event().wait(0.001)
    raise AssertionError(scheduler.stats())


def context(model_path: str, audio: bool = False, **options: int) -> StageContext:
    return StageContext(
        stage=replace(AUDIO_ENCODER if audio else IMAGE_ENCODER, options=options),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


def picture(seed: int, request_id: str = "r", side: int = 4) -> Work:
    patches = np.random.default_rng(seed).standard_normal((side * side, PATCH))
    content = patches.astype(np.float32)
    image = {
        "pixel_values": [content],
        "encoded": [None],
        "grid_thw": np.array([[1, side, side]]),
        "params": [f"picture {seed}"],
        "keys": [media_key(content.tobytes())],
    }
    return Work(request_id, RequestParams(), {"image": image})


def test_a_hit_is_exactly_what_was_computed(tiny_checkpoint: str) -> None:
    encoder = encoders.load_image(context(tiny_checkpoint))
    [miss], [hit] = encoder([picture(0)]), encoder([picture(0)])
    assert isinstance(miss, dict)
    assert isinstance(hit, dict)
    assert torch.equal(hit["image"]["embeds"], miss["image"]["embeds"])
    assert torch.equal(hit["image"]["deepstack"], miss["image"]["deepstack"])
    assert encoder.stats()["cache_hits"] == 1


def test_the_cache_counts_all_it_holds(tiny_checkpoint: str) -> None:
    """Features of a batch are kept apart, or the smallest would hold on to the memory of all."""
    encoder = encoders.load_image(context(tiny_checkpoint))
    made = encoder([picture(seed, side=side) for seed, side in enumerate((4, 8, 6))])
    held = 0
    for result in made:
        assert isinstance(result, dict)
        held += sum(part.untyped_storage().nbytes() for part in result["image"].values())
    assert encoder.stats()["cache_bytes"] == held


def test_bytes_limit_what_is_kept(tiny_checkpoint: str) -> None:
    one = encoders.load_image(context(tiny_checkpoint))
    one([picture(0)])
    size = int(one.stats()["cache_bytes"])
    encoder = encoders.load_image(context(tiny_checkpoint, cache_bytes=2 * size))
    for seed in (0, 1, 2, 1, 0):
        encoder([picture(seed)])
    stats = encoder.stats()
    assert (stats["cache_entries"], stats["cache_bytes"]) == (2, 2 * size)
    assert (stats["cache_hits"], stats["cache_misses"]) == (1, 4)


@pytest.mark.parametrize("off", [{"cache_entries": 0}, {"cache_bytes": 0}], ids=str)
def test_zero_switches_the_cache_off(tiny_checkpoint: str, off: dict[str, int]) -> None:
    encoder = encoders.load_image(context(tiny_checkpoint, **off))
    encoder([picture(0)])
    encoder([picture(0)])
    assert (encoder.stats()["cache_hits"], encoder.stats()["cache_entries"]) == (0, 0)


def test_limits_that_make_no_sense_end_the_start(tiny_checkpoint: str) -> None:
    with pytest.raises(ConfigError, match="cache_entries must be a whole number of at least 0"):
        encoders.load_image(context(tiny_checkpoint, cache_entries=-1))
    with pytest.raises(ConfigError, match="max_batch_frames must be a whole number of at least 1"):
        encoders.build_audio(context(tiny_checkpoint, audio=True, max_batch_frames=0))


def test_pictures_share_a_batch_until_it_costs_too_much(
    tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    encode = ImageEncoder.encode

    def counting(self: ImageEncoder, items: Any) -> Any:
        calls.append(len(items))
        return encode(self, items)

    monkeypatch.setattr(ImageEncoder, "encode", counting)
    ctx = context(tiny_checkpoint, max_batch_patches=3 * 16)
    patient = replace(ctx.stage, max_wait_ms=PATIENCE_S * 1000)
    scheduler = encoders.build_image(replace(ctx, stage=patient))
    works = [picture(seed, f"r{seed}") for seed in range(4)]
    with running(scheduler, works) as (_, outbox):
        outbox.wait_for("done", "r2")
    assert calls == [3]


def test_a_picture_that_exhausts_the_card_fails_alone(tiny_checkpoint: str) -> None:
    """As torch reports it, from inside the tower, on one of eight requests of a batch."""
    encoder = encoders.load_image(context(tiny_checkpoint))
    works = [picture(seed, f"r{seed}", side=12 if seed == 3 else 4) for seed in range(8)]

    def exhausted(module: Any, inputs: Any) -> None:
        if [1, 12, 12] in inputs[1]:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    hook = encoder.encoder._tower.register_forward_pre_hook(exhausted)
    scheduler = SimpleScheduler(encoder, max_batch=8, max_wait_ms=PATIENCE_S * 1000)
    with running(scheduler, works) as (_, outbox):
        for work in works:
            outbox.wait_for("fail" if work.request_id == "r3" else "done", work.request_id)
    hook.remove()
    [failure] = outbox.of("r3")
    assert (failure.value.status, failure.value.param) == (503, "picture 3")
    assert "lower max_pixels" in failure.value.message
    assert encoder.stats()["oom_splits"] == 3
    assert isinstance(encoder(works)[3], dict)
