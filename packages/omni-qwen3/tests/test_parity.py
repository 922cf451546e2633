"""Encoders, Thinker and Talker against transformers' batch-1 `generate`, alone and together.

Media are random patches and mel frames made here, so no preprocessing enters the comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni_core.media.keys import item_row_keys, media_key
from omni_core.scheduler.base import Chunk, ChunksDone, Close, Inbox, Scheduler, Work
from omni_core.specs import StageConfig, StageContext
from omni_core.types import (
    CodecDelta,
    Event,
    RequestParams,
    SamplingParams,
    Usage,
)
from omni_qwen3 import aggregate, encoders, talker, thinker
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.preprocess.settings import PromptConfig, load_settings
from omni_qwen3.preprocess.tokens import MediaSizes, expand, rows_of

MAX_TEXT, MAX_FRAMES = 20, 24
GREEDY = RequestParams(
    modalities=("text", "audio"),
    sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TEXT),
    stage_params={"talker_ar": SamplingParams(temperature=0.0, max_tokens=MAX_FRAMES)},
    return_codec=True,
)
AUDIO = "<|audio_start|><|audio_pad|><|audio_end|>"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A chat and the sizes of its media."""

    user: str
    before: str = ""
    """Earlier turns."""
    audio: tuple[int, ...] = ()
    images: tuple[tuple[int, int, int], ...] = ()
    videos: tuple[tuple[int, int, int], ...] = ()
    seconds: tuple[float, ...] = ()
    use_audio_in_video: bool = False


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


CASES = {
    "text": Case(user="What do you hear, see and say?"),
    "turns": Case(
        user="And what is 3.14?",
        before=turn("user", AUDIO + "count") + turn("assistant", "one two three"),
        audio=(130,),
    ),
    "audio": Case(user=AUDIO + "What do you hear?" + AUDIO, audio=(150, 60)),
    "image": Case(user=IMAGE + "Please describe the picture", images=((1, 6, 10),)),
    "video": Case(user=VIDEO + "What do you see?", videos=((4, 4, 6),), seconds=(1.0,)),
    "audio+image": Case(user=AUDIO + IMAGE + "Hear and see", audio=(200,), images=((1, 4, 4),)),
    "audio_in_video": Case(
        user=VIDEO + "What happens?",
        audio=(300,),
        videos=((4, 4, 6),),
        seconds=(0.8,),
        use_audio_in_video=True,
    ),
    "all": Case(
        user=AUDIO + IMAGE + VIDEO + IMAGE + "All of it",
        audio=(90,),
        images=((1, 4, 6), (1, 6, 4)),
        videos=((2, 4, 4),),
        seconds=(2.0,),
    ),
}


@dataclass(frozen=True)
class Inputs:
    """One case as our prompt and as transformers' keyword arguments."""

    prompt: dict[str, Any]
    reference: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    text: list[int]
    codes: np.ndarray[Any, Any]


def make_inputs(case: Case, tokenizer: Any, config: PromptConfig, end_id: int) -> Inputs:
    chat = turn("system", "You are a helpful assistant.") + case.before + turn("user", case.user)
    ids = expand(
        tokenizer(chat + "<|im_start|>assistant\n", add_special_tokens=False)["input_ids"],
        MediaSizes(
            image_grids=[list(grid) for grid in case.images],
            video_grids=[list(grid) for grid in case.videos],
            second_per_grid=list(case.seconds),
            audio_lengths=list(case.audio),
            use_audio_in_video=case.use_audio_in_video,
        ),
        audio_end_token_id=end_id,
        config=config,
    )
    rng = np.random.default_rng(len(ids))
    prompt: dict[str, Any] = {"input_ids": ids, "routed": []}
    reference: dict[str, Any] = {
        "input_ids": torch.from_numpy(ids)[None],
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "use_audio_in_video": case.use_audio_in_video,
    }
    for kind, grids, token, suffix in (
        ("image", case.images, config.image_token_id, ""),
        ("video", case.videos, config.video_token_id, "_videos"),
    ):
        if not grids:
            continue
        grid_thw = np.array(grids)
        patches = rng.standard_normal((grid_thw.prod(axis=1).sum(), 1536)).astype(np.float32)
        items = np.split(patches, grid_thw.prod(axis=1).cumsum()[:-1])
        prompt[kind] = {
            "pixel_values": items,
            "grid_thw": grid_thw,
            **described(items, rows_of(ids, token)),
        }
        reference["pixel_values" + suffix] = torch.from_numpy(patches)
        reference[f"{kind}_grid_thw"] = torch.from_numpy(grid_thw)
    if case.videos:
        prompt["video"]["second_per_grid"] = list(case.seconds)
        reference["video_second_per_grid"] = torch.tensor(case.seconds)
    if case.audio:
        _add_audio(case, rng, prompt, reference, rows_of(ids, config.audio_token_id))
    prompt["positions"], prompt["rope_delta"] = rope_index(
        ids,
        image_grid_thw=prompt["image"]["grid_thw"] if case.images else None,
        video_grid_thw=prompt["video"]["grid_thw"] if case.videos else None,
        second_per_grid=list(case.seconds) or None,
        audio_lengths=prompt["audio"]["lengths"] if case.audio else None,
        use_audio_in_video=case.use_audio_in_video,
        config=config,
    )
    return Inputs(prompt, reference)


def described(items: list[Any], rows: Any) -> dict[str, Any]:
    """What payloads say of items beside their content and size."""
    keys = [media_key(item.tobytes()) for item in items]
    return {
        "encoded": [None] * len(items),
        "params": ["messages"] * len(items),
        "keys": keys,
        "rows": rows,
        "row_keys": item_row_keys(keys[0], len(rows)),
    }


def _add_audio(
    case: Case,
    rng: np.random.Generator,
    prompt: dict[str, Any],
    reference: dict[str, Any],
    rows: Any,
) -> None:
    lengths = np.array(case.audio)
    padded = rng.standard_normal((len(lengths), 128, lengths.max())).astype(np.float32)
    mask = np.arange(lengths.max()) < lengths[:, None]
    clips = [clip[:, :frames] for clip, frames in zip(padded, lengths, strict=True)]
    prompt["audio"] = {
        "input_features": clips,
        "padded_samples": 0,
        "lengths": lengths,
        **described(clips, rows),
    }
    reference["input_features"] = torch.from_numpy(padded)
    reference["feature_attention_mask"] = torch.from_numpy(mask.astype(np.int64))


@pytest.fixture(scope="module")
def inputs(tiny_checkpoint: str) -> dict[str, Inputs]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    config = load_settings(tiny_checkpoint).prompt
    end_id = tokenizer.convert_tokens_to_ids("<|audio_end|>")
    return {name: make_inputs(case, tokenizer, config, end_id) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: str, inputs: dict[str, Inputs]) -> dict[str, Answer]:
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float32
    ).eval()
    # transformers' Talker looks for the audio config where none is (see the reference, 4.2).
    model.talker.config.audio_config = model.config.thinker_config.audio_config
    codes: list[torch.Tensor] = []

    def record(frames: torch.Tensor, **_: Any) -> torch.Tensor:
        codes.append(frames)
        return torch.zeros(1, 1, 1)

    model.code2wav.chunked_decode = record
    answers = {}
    for name, given in inputs.items():
        sequences, _ = model.generate(
            **given.reference,
            return_audio=True,
            thinker_max_new_tokens=MAX_TEXT,
            thinker_do_sample=False,
            thinker_eos_token_id=model.config.im_end_token_id,
            talker_max_new_tokens=MAX_FRAMES,
            talker_do_sample=False,
        )
        text = sequences[0, given.reference["input_ids"].shape[1] :].tolist()
        answers[name] = Answer(text, codes.pop()[0].numpy())
    return answers


@dataclass
class Wire:
    """An `Outbox` that records, and passes on what goes to another stage's inbox."""

    inbox: Inbox
    """Of the stage itself; closed when `requests` have ended."""
    requests: int
    source: str
    targets: dict[str, Inbox] = field(default_factory=dict)
    params: RequestParams = GREEDY
    sent: dict[tuple[str, str | None], Any] = field(default_factory=dict)
    chunks: dict[tuple[str, str | None], list[Any]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)

    def send(self, request_id: str, payload: Any, *, target: str | None = None) -> None:
        assert (request_id, target) not in self.sent
        self.sent[request_id, target] = payload
        if target in self.targets:
            self.targets[target].put(Work(request_id, self.params, payload))

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        assert (request_id, target) in self.sent
        self.chunks.setdefault((request_id, target), []).append(data)
        if target in self.targets:
            self.targets[target].put(Chunk(request_id, self.source, data))

    def stream_done(self, request_id: str) -> None:
        for target, inbox in self.targets.items():
            if (request_id, target) in self.sent:
                inbox.put(ChunksDone(request_id, self.source))

    def emit(self, request_id: str, event: Event) -> None:
        self.events.setdefault(request_id, []).append(event)

    def done(self, request_id: str, usage: Usage | None = None, **_: Any) -> None:
        assert request_id not in self.usage
        self.usage[request_id] = usage or Usage()
        if len(self.usage) == self.requests:
            self.inbox.put(Close())

    def complete(self, request_id: str, **_: Any) -> None:
        raise AssertionError("no terminal stage here")

    def released(self, request_id: str) -> None:
        raise AssertionError("nothing is aborted here")

    def fail(self, request_id: str, error: Any) -> None:
        self.inbox.put(Close())
        raise AssertionError(error)


def context(
    model_path: str, name: str, build: Callable[..., Any], options: dict[str, int] | None = None
) -> StageContext:
    stage = StageConfig(
        name=name,
        factory=build,
        next=("decode", "talker_ar") if name == "thinker" else (),
        max_batch=8,
        options=options or {},
    )
    return StageContext(
        stage=stage,
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )


class System:
    """Thinker and Talker in threads of their own, joined as the pipeline joins them."""

    def __init__(self, model_path: str, options: dict[str, int] | None = None) -> None:
        self.thinker: Scheduler = thinker.build(
            context(model_path, "thinker", thinker.build, options)
        )
        self.talker: Scheduler = talker.build(
            context(model_path, "talker_ar", talker.build, options)
        )

    def run(self, prepared: dict[str, Any], params: RequestParams = GREEDY) -> tuple[Wire, Wire]:
        """Answer all prompts at once; returns what Thinker and Talker sent."""
        speech = Inbox()
        first = Wire(Inbox(), len(prepared), "thinker", {"talker_ar": speech}, params)
        second = Wire(speech, len(prepared), "talker_ar", {}, params)
        for request_id, payload in prepared.items():
            first.inbox.put(Work(request_id, params, payload))
        threads = [
            threading.Thread(target=self.thinker.run, args=(first.inbox, first)),
            threading.Thread(target=self.talker.run, args=(second.inbox, second)),
        ]
        if "audio" not in params.modalities:
            threads = threads[:1]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
            assert not thread.is_alive()
        return first, second


@pytest.fixture(scope="module")
def system(tiny_checkpoint: str) -> System:
    return System(tiny_checkpoint)


@pytest.fixture(scope="module")
def prepared(tiny_checkpoint: str, inputs: dict[str, Inputs]) -> dict[str, Any]:
    """Every case through both encoders, all requests in one batch, and merged."""
    arrived: dict[str, dict[str, Any]] = {
        name: {"preprocessing": given.prompt} for name, given in inputs.items()
    }
    for name, build, kinds in (
        ("image_encoder", encoders.load_image, ("image", "video")),
        ("audio_encoder", encoders.load_audio, ("audio",)),
    ):
        encode = build(context(tiny_checkpoint, name, build))
        works = [
            Work(case, GREEDY, given.prompt)
            for case, given in inputs.items()
            if any(kind in given.prompt for kind in kinds)
        ]
        for work, features in zip(works, encode(works), strict=True):
            arrived[work.request_id][name] = features
    return {name: aggregate.merge(sources) for name, sources in arrived.items()}


def answers(first: Wire, second: Wire) -> dict[str, Answer]:
    return {
        name: Answer(
            [chunk["token"] for chunk in first.chunks[name, "decode"]],
            np.concatenate(second.chunks[name, "code2wav"], axis=1),
        )
        for name in first.usage
    }


def check(got: dict[str, Answer], expected: dict[str, Answer]) -> None:
    assert got
    for name, answer in got.items():
        assert answer.text == expected[name].text, name
        assert np.array_equal(answer.codes, expected[name].codes), name


def test_the_cases_end_in_every_way(expected: dict[str, Answer]) -> None:
    assert len({tuple(answer.text) for answer in expected.values()}) == len(CASES)
    assert {len(answer.text) == MAX_TEXT for answer in expected.values()} == {True, False}
    assert {answer.codes.shape[1] == MAX_FRAMES - 1 for answer in expected.values()} == {
        True,
        False,
    }
    assert all(len(np.unique(answer.codes)) > 10 for answer in expected.values())


@pytest.mark.parametrize("name", CASES)
def test_one_request_equals_transformers(
    name: str, system: System, prepared: dict[str, Any], expected: dict[str, Answer]
) -> None:
    check(answers(*system.run({name: prepared[name]})), expected)


def test_eight_requests_at_once_equal_transformers(
    system: System, prepared: dict[str, Any], expected: dict[str, Answer]
) -> None:
    first, second = system.run(prepared)
    check(answers(first, second), expected)
    for name, usage in second.usage.items():
        frames = expected[name].codes.shape[1]
        assert usage.audio_tokens == frames
        deltas = [e.codes for e in second.events[name] if isinstance(e, CodecDelta)]
        assert np.array_equal(np.concatenate(deltas, axis=1), expected[name].codes)


def test_prefill_in_chunks_equals_transformers(
    tiny_checkpoint: str, prepared: dict[str, Any], expected: dict[str, Answer]
) -> None:
    small = System(tiny_checkpoint, {"max_batch_tokens": 7, "max_running": 4})
    check(answers(*small.run(prepared)), expected)
