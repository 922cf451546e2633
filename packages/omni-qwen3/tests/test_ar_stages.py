"""The thinker and talker_ar stages over the torch engine: what they send, when, and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from omni_core.engine.base import Engine, EngineRequest, StepOutput
from omni_core.engine.torch_engine import TorchEngine
from omni_core.errors import RequestError
from omni_core.scheduler.base import Work
from omni_core.scheduler.omni import ARStage
from omni_core.specs import StageConfig, StageContext
from omni_core.types import CodecDelta, RequestParams, SamplingParams, Tool, ToolUse, Usage
from omni_qwen3 import talker, thinker
from omni_qwen3.config import load_config
from omni_qwen3.defaults import talker_defaults, thinker_defaults
from omni_qwen3.head_start import LEAD_TOKENS, HeadStart
from omni_qwen3.prompt import user_rows
from omni_qwen3.talker_stage import FRAMES_PER_TOKEN

SPEECH = ("text", "audio")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@dataclass
class Record:
    """An `Outbox` that keeps what is put in, in order, as (request, what, target, data)."""

    log: list[tuple[str, str, str | None, Any]] = field(default_factory=list)

    def send(self, request_id: str, payload: Any, *, target: str | None = None) -> None:
        self.log.append((request_id, "send", target, payload))

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        self.log.append((request_id, "stream", target, data))

    def stream_done(self, request_id: str) -> None:
        self.log.append((request_id, "stream_done", None, None))

    def emit(self, request_id: str, event: Any) -> None:
        self.log.append((request_id, "emit", None, event))

    def done(self, request_id: str, usage: Usage | None = None, *, cut: str | None = None) -> None:
        self.log.append((request_id, "done", cut, usage))

    def complete(self, request_id: str, **_: Any) -> None:
        raise AssertionError("no terminal stage here")

    def released(self, request_id: str) -> None:
        raise AssertionError("nothing is aborted here")

    def fail(self, request_id: str, error: Any) -> None:
        raise AssertionError(error)

    def to(self, target: str, what: str, request_id: str = "r") -> list[Any]:
        return [d for r, w, t, d in self.log if (r, w, t) == (request_id, what, target)]

    def shape(self) -> list[tuple[str, str | None]]:
        return [(what, target) for _, what, target, _ in self.log]


def step(engine: Engine, stage: ARStage, requests: dict[str, EngineRequest], out: Record) -> None:
    for output in engine.step():
        stage.publish(requests[output.request_id], output, out)


def run(
    engine: Engine,
    stage: ARStage,
    works: list[Work],
    out: Record,
    chunks: tuple[Any, ...] = (None,),
) -> None:
    """All requests, each with the same `chunks`."""
    requests: dict[str, EngineRequest] = {}
    for work in works:
        request = stage.admit(work, out)
        if request is not None:
            requests[work.request_id] = request
            engine.add(request)
            feed(engine, stage, request, chunks, out)
    while engine.runnable():
        step(engine, stage, requests, out)
    assert engine.stats().running == engine.stats().kv_pages_used == 0


def feed(
    engine: Engine, stage: ARStage, request: EngineRequest, chunks: tuple[Any, ...], out: Record
) -> None:
    for chunk in chunks:
        if stage.hear(request, chunk, out):
            engine.feed(request.request_id, chunk)
        else:
            engine.abort(request.request_id)


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
def thinker_runner(tiny_checkpoint: str) -> thinker.ThinkerRunner:
    return thinker.load_runner(context(tiny_checkpoint, "thinker"))


@pytest.fixture(scope="module")
def talker_runner(tiny_checkpoint: str) -> talker.TalkerRunner:
    return talker.load_runner(context(tiny_checkpoint, "talker_ar"))


@pytest.fixture(scope="module")
def prompt(tiny_checkpoint: str) -> dict[str, Any]:
    """A system turn, an earlier exchange, and a question; text only."""
    chat = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    ids = np.array(tokenizer(chat, add_special_tokens=False)["input_ids"])
    line = np.arange(len(ids), dtype=np.float32)
    return {"input_ids": ids, "positions": np.stack([line] * 3), "rope_delta": 0.0}


def think(
    runner: thinker.ThinkerRunner,
    path: str,
    prompt: dict[str, Any],
    *,
    can_speak: bool = True,
    room: int = 4,
    modalities: Any = SPEECH,
    sampling: SamplingParams = GREEDY,
) -> Record:
    out = Record()
    defaults = thinker_defaults(path)
    stage = thinker.ThinkerStage(runner, defaults, can_speak=can_speak, max_running=room)
    params = RequestParams(modalities=modalities, sampling=sampling)
    run(TorchEngine(runner), stage, [Work("r", params, prompt)], out)
    return out


def speak(
    runner: talker.TalkerRunner,
    path: str,
    conditioning: dict[str, Any],
    requests: dict[str, RequestParams],
) -> Record:
    out = Record()
    stage = talker.TalkerStage(runner.config, talker_defaults(path))
    works = [Work(name, params, conditioning) for name, params in requests.items()]
    word = torch.full((1, runner.config.thinker_hidden_size), 0.1)
    run(TorchEngine(runner), stage, works, out, ({"rows": word}, None))
    return out


def codes(out: Record, request_id: str = "r") -> Any:
    return np.concatenate(out.to("code2wav", "stream", request_id), axis=1)


@pytest.fixture(scope="module")
def conditioning(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> dict[str, Any]:
    (start,) = think(thinker_runner, tiny_checkpoint, prompt).to("talker_ar", "send")
    content: dict[str, Any] = start
    return content


def test_every_token_goes_to_decode_and_every_spoken_row_to_the_talker(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    out = think(thinker_runner, tiny_checkpoint, prompt)
    chunks = out.to("decode", "stream")
    assert len(chunks) == 8
    assert [chunk["finish"] for chunk in chunks] == [None] * 7 + ["length"]
    assert out.to("decode", "send") == [{"opened": False, "calls": False, "raw": False}]
    usage = Usage(prompt_tokens=len(prompt["input_ids"]), text_tokens=8)
    assert out.log[-1] == ("r", "done", None, usage)
    rows = [chunk["rows"] for chunk in out.to("talker_ar", "stream")]
    spoken = thinker_runner.embed(tuple(chunk["token"] for chunk in chunks[:-1]))
    assert torch.equal(torch.cat(rows), spoken)
    assert out.shape()[:4] == [
        ("send", "talker_ar"), ("send", "decode"), ("stream", "decode"), ("stream", "talker_ar")
    ]  # fmt: skip
    assert out.shape()[-2:] == [("stream_done", None), ("done", None)]


def test_the_talker_never_gets_what_may_be_a_call(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    ids = AutoTokenizer.from_pretrained(tiny_checkpoint)
    use = msgspec.msgpack.encode(ToolUse(tools=(Tool(name="f"),)))
    stage = thinker.ThinkerStage(
        thinker_runner, thinker_defaults(tiny_checkpoint), can_speak=True, max_running=4
    )
    out = Record()
    work = Work("r", RequestParams(modalities=SPEECH, sampling=GREEDY), {**prompt, "tool_use": use})
    request = stage.admit(work, out)
    assert request is not None
    said = ids("Hi <b>").input_ids
    tokens = [*said, *(ids(letter).input_ids[0] for letter in "<tool_call>{}</tool_call>")]
    for index, token in enumerate(tokens):
        last = index == len(tokens) - 1
        output = StepOutput(
            request_id="r", token=token, index=index, released=(token,),
            finish_reason="length" if last else None,
        )  # fmt: skip
        stage.publish(request, output, out)
    assert out.to("decode", "send") == [{"opened": False, "calls": True, "raw": False}]
    assert len(out.to("decode", "stream")) == len(tokens)
    rows = [chunk["rows"] for chunk in out.to("talker_ar", "stream")]
    assert torch.equal(torch.cat(rows), thinker_runner.embed(tuple(said)))


def test_only_user_turns_condition_the_talker(
    conditioning: dict[str, Any], tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    text = AutoTokenizer.from_pretrained(tiny_checkpoint).decode(conditioning["user_ids"])
    assert text == ("<|im_start|>user\nHello<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n")
    assert not conditioning["user_is_media"].any()
    assert len(conditioning["user_rows"]) == len(conditioning["user_ids"])


def test_the_thinker_rests_unless_somebody_only_reads_or_has_not_begun(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    now_s = 0.0
    stage = thinker.ThinkerStage(
        thinker_runner,
        thinker_defaults(tiny_checkpoint),
        can_speak=True,
        max_running=4,
        head_start=HeadStart(lambda: now_s),
    )
    engine, out = TorchEngine(thinker_runner), Record()

    def admit(name: str, modalities: Any) -> EngineRequest:
        params = RequestParams(modalities=modalities, sampling=GREEDY)
        request = stage.admit(Work(name, params, prompt), out)
        assert request is not None
        return request

    requests = {"speaks": admit("speaks", SPEECH)}
    engine.add(requests["speaks"])
    for _ in range(LEAD_TOKENS):
        assert stage.rest_s() == 0
        now_s += 0.001
        step(engine, stage, requests, out)
    assert stage.rest_s() > 0
    for name, modalities in (("reads", ("text",)), ("speaks later", SPEECH)):
        admit(name, modalities)
        assert stage.rest_s() == 0
        stage.forget(name)
        assert stage.rest_s() > 0


def test_rows_before_any_turn_are_no_user_rows(tiny_checkpoint: str) -> None:
    config = load_config(tiny_checkpoint)
    start, user = config.im_start_token_id, config.user_token_id
    assert user_rows(np.array([5, 6, start, user, 7]), config).tolist() == [2, 3, 4]
    assert user_rows(np.array([user, 6]), config).tolist() == []


@pytest.mark.parametrize(("modalities", "can_speak"), [(("text",), True), (SPEECH, False)])
def test_a_silent_request_never_touches_the_talker(
    thinker_runner: thinker.ThinkerRunner,
    tiny_checkpoint: str,
    prompt: dict[str, Any],
    modalities: Any,
    can_speak: bool,
) -> None:
    out = think(thinker_runner, tiny_checkpoint, prompt, modalities=modalities, can_speak=can_speak)
    assert len(out.to("decode", "stream")) == 8
    assert "talker_ar" not in {target for _, target in out.shape()}


def test_a_reply_of_only_an_end_token_has_nothing_to_say(
    thinker_runner: thinker.ThinkerRunner,
    talker_runner: talker.TalkerRunner,
    tiny_checkpoint: str,
    prompt: dict[str, Any],
) -> None:
    first = think(thinker_runner, tiny_checkpoint, prompt).to("decode", "stream")[0]["token"]
    end = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop_token_ids=(first,))
    out = think(thinker_runner, tiny_checkpoint, prompt, sampling=end)
    assert out.to("decode", "stream") == [{"token": first, "finish": "stop"}]
    (start,) = out.to("talker_ar", "send")
    assert start["speak"]
    assert out.to("talker_ar", "stream") == []
    params = RequestParams(modalities=SPEECH)
    for given in (start, {"speak": False}):
        stage = talker.TalkerStage(talker_runner.config, talker_defaults(tiny_checkpoint))
        silent = Record()
        run(TorchEngine(talker_runner), stage, [Work("r", params, given)], silent)
        assert silent.shape() == [("send", "code2wav"), ("stream_done", None), ("done", None)]


def test_one_token_cut_off_by_the_limit_is_not_spoken(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    cut = SamplingParams(temperature=0.0, max_tokens=1)
    out = think(thinker_runner, tiny_checkpoint, prompt, sampling=cut)
    assert out.to("talker_ar", "stream") == []
    late = think(thinker_runner, tiny_checkpoint, prompt, sampling=cut, room=0)
    assert late.to("talker_ar", "send") == [{"speak": False}]


def test_a_reply_that_has_to_wait_conditions_the_talker_with_its_first_token(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    at_once = think(thinker_runner, tiny_checkpoint, prompt)
    late = think(thinker_runner, tiny_checkpoint, prompt, room=0)
    assert late.shape()[:4] == [
        ("send", "decode"), ("stream", "decode"), ("send", "talker_ar"), ("stream", "talker_ar")
    ]  # fmt: skip
    (early,), (given,) = (out.to("talker_ar", "send") for out in (at_once, late))
    assert early.keys() == given.keys()
    for key in ("user_ids", "user_rows", "user_is_media", "assistant_rows"):
        np.testing.assert_array_equal(early[key], given[key])


def test_a_stop_string_is_not_spoken(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    tokens = [
        c["token"] for c in think(thinker_runner, tiny_checkpoint, prompt).to("decode", "stream")
    ]
    texts = [thinker_runner.text([token]) for token in tokens]
    index = next(i for i in range(1, 8) if texts[i] not in "".join(texts[:i]))
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop=(texts[index],))
    out = think(thinker_runner, tiny_checkpoint, prompt, sampling=sampling)
    rows = [chunk["rows"] for chunk in out.to("talker_ar", "stream")]
    assert torch.equal(torch.cat(rows), thinker_runner.embed(tuple(tokens[:index])))


def test_an_aborted_request_leaves_nothing(
    thinker_runner: thinker.ThinkerRunner, tiny_checkpoint: str, prompt: dict[str, Any]
) -> None:
    defaults = thinker_defaults(tiny_checkpoint)
    stage = thinker.ThinkerStage(thinker_runner, defaults, can_speak=True, max_running=4)
    out, engine = Record(), TorchEngine(thinker_runner)
    work = Work("r", RequestParams(modalities=SPEECH, sampling=GREEDY), prompt)
    for _ in range(2):  # the id can be used again at once
        request = stage.admit(work, out)
        assert request is not None
        engine.add(request)
        step(engine, stage, {"r": request}, out)
        engine.abort("r")
        stage.forget("r")
    assert stage._replies == {}
    assert engine.stats().kv_pages_used == 0


def frames(**talker_params: Any) -> RequestParams:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **talker_params})
    return RequestParams(modalities=SPEECH, stage_params={"talker_ar": sampling})


def test_each_frame_leaves_at_once_and_the_last_code_is_none(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    params = frames(ignore_eos=True)
    out = speak(talker_runner, tiny_checkpoint, conditioning, {"r": params})
    chunks = out.to("code2wav", "stream")
    assert len(chunks) == 11
    assert {(chunk.shape, chunk.dtype) for chunk in chunks} == {((16, 1), np.dtype(np.int64))}
    assert out.log[-1] == ("r", "done", "audio", Usage(audio_tokens=11)), "cut by max_tokens"
    assert "emit" not in {what for what, _ in out.shape()}


def test_an_end_that_is_ignored_is_never_spoken(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    (end,) = talker_runner.eos_token_ids
    likely = {end: 100.0}
    params = frames(ignore_eos=True, logit_bias=likely)
    requests = {"r": params, "ends": frames(logit_bias=likely)}
    out = speak(talker_runner, tiny_checkpoint, conditioning, requests)
    assert codes(out).shape == (16, 11)
    assert codes(out)[0].max() < end
    assert not out.to("code2wav", "stream", "ends")
    ends = [(name, cut) for name, what, cut, _ in out.log if what == "done"]
    assert ends == [("ends", None), ("r", "audio")]


def test_codec_events_come_when_asked_for(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    params = RequestParams(stage_params=frames().stage_params, return_codec=True)
    out = speak(talker_runner, tiny_checkpoint, conditioning, {"r": params})
    events = [data for _, what, _, data in out.log if what == "emit"]
    assert all(isinstance(event, CodecDelta) for event in events)
    assert np.array_equal(np.concatenate([e.codes for e in events], axis=1), codes(out))


def test_the_talker_waits_for_text_that_is_still_to_come(
    talker_runner: talker.TalkerRunner,
    thinker_runner: thinker.ThinkerRunner,
    tiny_checkpoint: str,
    conditioning: dict[str, Any],
) -> None:
    engine, out = TorchEngine(talker_runner), Record()
    stage = talker.TalkerStage(talker_runner.config, talker_defaults(tiny_checkpoint))
    request = stage.admit(Work("r", frames(ignore_eos=True), conditioning), out)
    assert request is not None
    engine.add(request)
    counts = []
    for row in (*thinker_runner.embed((40, 41, 42)), None):
        while engine.runnable():
            step(engine, stage, {"r": request}, out)
        counts.append(len(out.to("code2wav", "stream")))
        engine.feed("r", None if row is None else {"rows": row[None]})
    assert counts == [0, 1, 2, 3]
    while engine.runnable():
        step(engine, stage, {"r": request}, out)
    assert len(out.to("code2wav", "stream")) == 11


def test_sampled_speech_repeats_with_its_seed_in_any_company(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    def sampled(seed: int) -> RequestParams:
        return frames(temperature=0.9, seed=seed, ignore_eos=True)

    alone = codes(speak(talker_runner, tiny_checkpoint, conditioning, {"r": sampled(7)}))
    company = {"a": sampled(1), "r": sampled(7), "b": frames(ignore_eos=True), "c": sampled(7)}
    together = speak(talker_runner, tiny_checkpoint, conditioning, company)
    greedy = speak(talker_runner, tiny_checkpoint, conditioning, {"r": frames(ignore_eos=True)})
    assert np.array_equal(codes(together, "r"), alone)
    assert np.array_equal(codes(together, "c"), alone)
    assert not np.array_equal(codes(together, "a"), alone)
    assert np.array_equal(codes(together, "b"), codes(greedy))


def test_only_the_seed_of_the_request_reaches_the_talker(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    stage = talker.TalkerStage(talker_runner.config, talker_defaults(tiny_checkpoint))
    asked = SamplingParams(temperature=0.1, max_tokens=3, seed=5, stop=("x",))
    request = stage.admit(Work("r", RequestParams(sampling=asked), conditioning), Record())
    assert request is not None
    defaults = talker_defaults(tiny_checkpoint)
    assert request.sampling == SamplingParams(seed=5).over(defaults)
    own = RequestParams(sampling=asked, stage_params={"talker_ar": SamplingParams(seed=6)})
    request = stage.admit(Work("r", own, conditioning), Record())
    assert request is not None
    assert request.sampling.seed == 6


def test_a_text_to_read_has_room_for_all_of_its_words(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    stage = talker.TalkerStage(talker_runner.config, talker_defaults(tiny_checkpoint))

    def limit(tokens: int, params: RequestParams) -> int | None:
        request = stage.admit(Work("r", params, {**conditioning, "reading": tokens}), Record())
        assert request is not None
        return request.sampling.max_tokens

    usual = talker_defaults(tiny_checkpoint).max_tokens
    assert usual is not None
    assert limit(1, RequestParams()) == usual
    assert limit(usual, RequestParams()) == FRAMES_PER_TOKEN * usual
    assert limit(usual, frames(max_tokens=7)) == 7


def test_voices_are_found_without_regard_to_case(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    def voice(name: str | None) -> RequestParams:
        return RequestParams(voice=name, stage_params=frames(ignore_eos=True).stage_params)

    requests = {"default": voice(None), "same": voice("ETHAN"), "other": voice("Chelsie")}
    out = speak(talker_runner, tiny_checkpoint, conditioning, requests)
    assert np.array_equal(codes(out, "default"), codes(out, "same"))
    assert not np.array_equal(codes(out, "default"), codes(out, "other"))


def test_an_unknown_voice_is_the_callers_error(
    talker_runner: talker.TalkerRunner, tiny_checkpoint: str, conditioning: dict[str, Any]
) -> None:
    stage = talker.TalkerStage(talker_runner.config, talker_defaults(tiny_checkpoint))
    out = Record()
    with pytest.raises(RequestError, match="aiden") as raised:
        stage.admit(Work("r", RequestParams(voice="nobody"), conditioning), out)
    assert raised.value.param == "voice"
    assert out.log == []
