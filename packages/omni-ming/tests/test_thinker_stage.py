"""The thinker stage: what it sends to decode and to who speaks, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from omni_core.engine.base import EngineRequest, StepOutput, TokenLogprobs
from omni_core.engine.common.active import ActiveSequence
from omni_core.errors import StageError
from omni_core.scheduler.base import Work
from omni_core.text.decode import Reply
from omni_core.text.detokenize import TokenBytes
from omni_core.types import Grammar, Modality, RequestParams, SamplingParams, TextDelta, Usage
from omni_ming.defaults import eos_token_ids, thinker_defaults
from omni_ming.model.config import ThinkerConfig, load_thinker_config
from omni_ming.payloads import Prepared
from omni_ming.preprocess.tokenizer import TextTokenizer
from omni_ming.thinker_stage import ThinkerStage

SPEECH: tuple[Modality, ...] = ("text", "audio")
WITH_SEGMENTER, WITH_TALKER = ("decode", "segmenter"), ("talker", "decode")


@dataclass
class Record:
    """An `Outbox` that keeps (what, target, data) of one request, in order."""

    log: list[tuple[str, str | None, Any]] = field(default_factory=list)

    def send(self, request_id: str, payload: Any, *, target: str | None = None) -> None:
        self.log.append(("send", target, payload))

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        self.log.append(("stream", target, data))

    def stream_done(self, request_id: str) -> None:
        self.log.append(("stream_done", None, None))

    def done(self, request_id: str, usage: Usage | None = None) -> None:
        self.log.append(("done", None, usage))

    def to(self, target: str, what: str = "stream") -> list[Any]:
        return [data for did, whom, data in self.log if (did, whom) == (what, target)]

    def said(self, target: str = "segmenter") -> list[str]:
        return [chunk["text"] for chunk in self.to(target)]


@dataclass
class Model:
    """The tiny checkpoint's tokens, and what a stage over it makes of given replies."""

    path: str
    config: ThinkerConfig
    tokens: TokenBytes
    end: int

    def spell(self, text: str) -> list[int]:
        return TextTokenizer(self.path, 4096).encode(text)

    def stage(self, targets: tuple[str, ...] = WITH_SEGMENTER) -> ThinkerStage:
        defaults = thinker_defaults(self.path)
        ends = eos_token_ids(self.path)
        return ThinkerStage(targets, self.tokens, defaults, self.config, end_tokens=ends)

    def outputs(self, request: EngineRequest, reply: list[int]) -> list[StepOutput]:
        """As engines make them of sampled tokens."""
        active = ActiveSequence.of(
            request, eos_token_ids=frozenset((self.end,)), max_len=4096, text=self.tokens.text
        )
        made = []
        for token in reply:
            active.in_flight += 1
            made.append(active.take(token))
            if made[-1].finish_reason is not None:
                break
        return made

    def publish(
        self,
        reply: list[int],
        *,
        targets: tuple[str, ...] = WITH_SEGMENTER,
        modalities: tuple[Modality, ...] = SPEECH,
        raw: bool = False,
        **sampling: Any,
    ) -> Record:
        stage, out = self.stage(targets), Record()
        params = RequestParams(modalities=modalities, sampling=SamplingParams(**sampling))
        request = stage.admit(Work("r", params, {**prompt([5, 6, 7]), "raw": raw}), out)
        assert request is not None
        for output in self.outputs(request, reply):
            stage.publish(request, output, out)
        assert stage._replies == {}
        return out


@pytest.fixture(scope="module")
def model(tiny_checkpoint: str) -> Model:
    [end] = eos_token_ids(tiny_checkpoint)
    config, tokens = load_thinker_config(tiny_checkpoint), TokenBytes(tiny_checkpoint)
    return Model(tiny_checkpoint, config, tokens, end)


def prompt(ids: list[int]) -> dict[str, Any]:
    line = np.arange(len(ids))
    return dict(
        Prepared(input_ids=np.array(ids), positions=np.stack([line] * 3), rope_delta=0)  # type: ignore[arg-type]
    )


def read(model: Model, out: Record, **sampling: Any) -> str:
    """What decode makes of the same reply."""
    params = RequestParams(sampling=SamplingParams(**sampling))
    [start] = out.to("decode", "send")
    ends = frozenset((model.end,))
    reply = Reply(model.tokens, ends, params, reasons=not start["raw"], opened=start["opened"])
    deltas = [d for d in reply.push(out.to("decode")) if isinstance(d, TextDelta)]
    return "".join(delta.text for delta in deltas if delta.channel == "content")


@pytest.mark.parametrize("targets", [WITH_SEGMENTER, WITH_TALKER])
def test_the_text_leaves_token_by_token(model: Model, targets: tuple[str, ...]) -> None:
    speaker = next(target for target in targets if target != "decode")
    reply = model.spell("hello, 你好 world")
    out = model.publish([*reply, model.end], targets=targets)
    assert [(what, target) for what, target, _ in out.log[:4]] == [
        ("send", speaker), ("send", "decode"), ("stream", "decode"), ("stream", speaker)
    ]  # fmt: skip
    assert out.log[0][2] == {}
    assert out.to("decode", "send") == [{"opened": False, "calls": False, "raw": False}]
    chunks = out.to("decode")
    assert [chunk["token"] for chunk in chunks] == [*reply, model.end]
    assert [chunk["finish"] for chunk in chunks] == [None] * len(reply) + ["stop"]
    assert "".join(out.said(speaker)) == "hello, 你好 world"
    assert len(out.said(speaker)) > 3
    usage = Usage(prompt_tokens=3, text_tokens=len(reply) + 1)
    assert out.log[-2:] == [("stream_done", None, None), ("done", None, usage)]


def test_no_chunk_ends_within_a_character(model: Model) -> None:
    reply = [next(i for i in range(model.config.vocab_size) if model.tokens[i] == bytes([byte]))
             for byte in "好a😀".encode()]  # fmt: skip
    out = model.publish([*reply, model.end])
    assert out.said() == ["好", "a", "😀"]
    assert len(out.to("decode")) == len(reply) + 1


def test_a_character_that_is_cut_short_is_spoken_as_it_is_shown(model: Model) -> None:
    reply = [next(i for i in range(model.config.vocab_size) if model.tokens[i] == bytes([byte]))
             for byte in "a好".encode()[:3]]  # fmt: skip
    out = model.publish(reply, max_tokens=len(reply))
    assert (
        "".join(out.said())
        == read(model, out, max_tokens=len(reply))
        == "a\N{REPLACEMENT CHARACTER}"
    )


@pytest.mark.parametrize("modalities", [("text",), SPEECH])
@pytest.mark.parametrize("targets", [("decode",), WITH_SEGMENTER])
def test_who_only_reads_opens_no_speech(
    model: Model, modalities: tuple[Modality, ...], targets: tuple[str, ...]
) -> None:
    out = model.publish([*model.spell("hi"), model.end], targets=targets, modalities=modalities)
    speaks = "audio" in modalities and "segmenter" in targets
    assert ("segmenter" in {target for _, target, _ in out.log}) == speaks
    assert read(model, out) == "hi"


@pytest.mark.parametrize("stop", ["wor", "lo", "rld"])
def test_a_stop_string_cuts_the_speech_where_it_cuts_the_text(model: Model, stop: str) -> None:
    """Within a token, too."""
    text = "hello, world"
    out = model.publish([*model.spell(text), model.end], stop=(stop,))
    assert "".join(out.said()) == read(model, out, stop=(stop,)) == text.partition(stop)[0]
    assert out.to("decode")[-1]["finish"] == "stop"


def test_what_may_begin_a_stop_string_waits_and_is_said_if_it_does_not(model: Model) -> None:
    text = "a <b> c"
    tokens = [token for letter in text for token in model.spell(letter)]
    out = model.publish([*tokens, model.end], stop=("<br>",))
    assert "".join(out.said()) == text
    assert "<b" not in out.said()
    assert "<" not in out.said()


def test_thoughts_are_not_said(model: Model) -> None:
    tokens = [token for letter in "<think>\nno</think>\n\nyes" for token in model.spell(letter)]
    out = model.publish([*tokens, model.end])
    assert "".join(out.said()) == read(model, out) == "yes"
    raw = model.publish([*tokens, model.end], raw=True)
    assert raw.to("decode", "send")[0]["raw"]
    assert "".join(raw.said()) == read(model, raw) == "<think>\nno</think>\n\nyes"


def test_a_reply_that_the_limit_cuts_is_said_to_its_last_token(model: Model) -> None:
    reply = model.spell("hello there")
    out = model.publish(reply, max_tokens=len(reply))
    assert out.to("decode")[-1]["finish"] == "length"
    assert "".join(out.said()) == "hello there"


def test_a_reply_of_only_an_end_token_says_nothing(model: Model) -> None:
    out = model.publish([model.end])
    assert out.to("segmenter", "send") == [{}]
    assert out.said() == []


def test_a_stop_token_of_the_caller_is_neither_shown_nor_said(model: Model) -> None:
    [*said, last] = model.spell("hello there")
    out = model.publish([*said, last], stop_token_ids=(last,))
    assert out.to("decode")[-1] == {"token": last, "finish": "stop"}
    assert (
        "".join(out.said()) == read(model, out, stop_token_ids=(last,)) == model.tokens.text(said)
    )


def test_a_text_to_read_aloud_goes_to_who_speaks_alone(model: Model) -> None:
    payload = {**prompt([]), "spoken_text": "Read this."}
    out = Record()
    work = Work("r", RequestParams(modalities=("audio",)), payload)
    assert model.stage().admit(work, out) is None
    assert [(what, target) for what, target, _ in out.log] == [
        ("send", "segmenter"), ("stream", "segmenter"), ("stream_done", None), ("done", None)
    ]  # fmt: skip
    assert out.said() == ["Read this."]
    with pytest.raises(StageError, match="does not speak"):
        model.stage(("decode",)).admit(work, Record())


def test_media_rows_are_counted_and_have_keys_of_their_own(model: Model) -> None:
    config = model.config
    media = [config.image_token_id] * 2 + [config.video_token_id] + [config.audio_token_id] * 4
    payload = prompt([5, *media, 6])
    payload["media_index"] = np.arange(1, 8)
    payload["media_row_keys"] = -np.arange(1, 8)
    stage, out = model.stage(), Record()
    request = stage.admit(Work("r", RequestParams(), payload), out)
    assert request is not None
    assert request.row_keys is not None
    assert request.row_keys.tolist() == [5, -1, -2, -3, -4, -5, -6, -7, 6]
    assert payload["input_ids"].tolist() == [5, *media, 6]
    [output] = model.outputs(request, [model.end])
    output.cached_tokens = 4
    stage.publish(request, output, out)
    assert out.log[-1][2] == Usage(
        prompt_tokens=9,
        prompt_image_tokens=3,
        prompt_audio_tokens=4,
        text_tokens=1,
        cached_tokens=4,
    )


def test_parameters_for_the_thinker_win_and_the_rest_is_the_checkpoints(model: Model) -> None:
    grammar = Grammar(kind="lark", text='start: "a"')
    params = RequestParams(
        sampling=SamplingParams(seed=1, top_p=0.5),
        stage_params={"thinker": SamplingParams(seed=2, grammar=grammar)},
    )
    request = model.stage().admit(Work("r", params, prompt([5])), Record())
    assert request is not None
    assert request.sampling == SamplingParams(seed=2, top_p=0.5, grammar=grammar).over(
        thinker_defaults(model.path)
    )
    assert not request.strict_max_tokens


def test_logprobs_go_to_decode(model: Model) -> None:
    stage, out = model.stage(), Record()
    request = stage.admit(Work("r", RequestParams(), prompt([5])), out)
    assert request is not None
    [output] = model.outputs(request, [model.end])
    output.logprobs = TokenLogprobs(-0.5, ((model.end, -0.5), (7, -2.0)))
    stage.publish(request, output, out)
    [chunk] = out.to("decode")
    assert chunk["logprobs"] == {"token": -0.5, "top_ids": [model.end, 7], "top": [-0.5, -2.0]}


def test_an_aborted_reply_is_forgotten(model: Model) -> None:
    stage = model.stage()
    work = Work("r", RequestParams(modalities=SPEECH), prompt([5]))
    for _ in range(2):
        assert stage.admit(work, Record()) is not None
        stage.forget("r")
    assert stage._replies == {}
