"""The decode stage: characters stay whole, special tokens and stop strings stay hidden."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from omni_core.errors import OmniError
from omni_core.scheduler.base import Abort, Chunk, ChunksDone, Close, Inbox, Work
from omni_core.text.decode import DecodeScheduler
from omni_core.text.detokenize import Detokenizer, TokenBytes
from omni_core.text.payloads import Logprobs, TokenChunk
from omni_core.types import (
    Event,
    FinishReason,
    RequestParams,
    SamplingParams,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from omni_qwen3.defaults import eos_token_ids

LATE_S = 10.0


@dataclass
class Recorder:
    """An Outbox that keeps what it gets."""

    events: list[Any] = field(default_factory=list)
    ended: list[tuple[str, FinishReason, Usage | None]] = field(default_factory=list)
    failed: list[OmniError] = field(default_factory=list)
    let_go: list[str] = field(default_factory=list)
    heard: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def emit(self, request_id: str, event: Event) -> None:
        assert isinstance(event, (TextDelta, ToolCallDelta))
        self.events.append(event)
        self.heard.release()

    def complete(
        self, request_id: str, *, finish_reason: FinishReason = "stop", usage: Usage | None = None
    ) -> None:
        self.ended.append((request_id, finish_reason, usage))
        self.heard.release()

    def fail(self, request_id: str, error: OmniError) -> None:
        self.failed.append(error)
        self.heard.release()

    def released(self, request_id: str) -> None:
        self.let_go.append(request_id)

    def send(self, request_id: str, payload: Any, *, target: str | None = None) -> None:
        raise AssertionError("decode is the last stage")

    def stream(self, request_id: str, data: Any, *, target: str | None = None) -> None:
        raise AssertionError("decode is the last stage")

    def stream_done(self, request_id: str) -> None:
        raise AssertionError("decode is the last stage")

    def done(self, request_id: str, usage: Usage | None = None) -> None:
        raise AssertionError("decode is terminal")

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def token_ids(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def tokens(tiny_checkpoint: str) -> TokenBytes:
    return TokenBytes(tiny_checkpoint)


@dataclass
class Stage:
    """A running decode stage."""

    scheduler: DecodeScheduler
    inbox: Inbox = field(default_factory=Inbox)
    outbox: Recorder = field(default_factory=Recorder)

    def open(
        self,
        request_id: str = "r",
        params: RequestParams | None = None,
        *,
        opened: bool = False,
        calls: bool = False,
        raw: bool = False,
    ) -> None:
        payload: dict[str, Any] = {"opened": opened, "calls": calls, "raw": raw}
        self.inbox.put(Work(request_id, params or RequestParams(), payload))

    def push(
        self,
        token: int,
        finish: FinishReason | None = None,
        request_id: str = "r",
        *,
        logprobs: Logprobs | None = None,
    ) -> None:
        chunk = TokenChunk(token=token, finish=finish)
        if logprobs is not None:
            chunk["logprobs"] = logprobs
        self.inbox.put(Chunk(request_id, "thinker", chunk))
        if finish is not None:
            self.inbox.put(ChunksDone(request_id, "thinker"))

    def wait(self) -> None:
        assert self.outbox.heard.acquire(timeout=LATE_S)

    def wait_end(self) -> None:
        while not (self.outbox.ended or self.outbox.failed):
            self.wait()


@pytest.fixture
def stage(tokens: TokenBytes, tiny_checkpoint: str) -> Iterator[Stage]:
    yield from run(DecodeScheduler(tokens, eos_token_ids(tiny_checkpoint), reasons=False))


@pytest.fixture
def thinking(tokens: TokenBytes, tiny_checkpoint: str) -> Iterator[Stage]:
    yield from run(DecodeScheduler(tokens, eos_token_ids(tiny_checkpoint), reasons=True))


def run(scheduler: DecodeScheduler) -> Iterator[Stage]:
    running = Stage(scheduler)
    thread = threading.Thread(target=running.scheduler.run, args=(running.inbox, running.outbox))
    thread.start()
    yield running
    running.inbox.put(Close())
    thread.join(timeout=LATE_S)
    assert not thread.is_alive()


def reply(
    stage: Stage,
    ids: list[int],
    last: FinishReason,
    params: RequestParams,
    *,
    opened: bool = False,
    raw: bool = False,
) -> None:
    stage.open(params=params, opened=opened, raw=raw)
    for place, token in enumerate(ids):
        stage.push(token, last if place == len(ids) - 1 else None)
    stage.wait_end()


@pytest.mark.parametrize("seed", range(20))
def test_any_tokens_decode_as_the_tokenizer_does(
    tokens: TokenBytes, tokenizer: Any, seed: int
) -> None:
    """Random ids: broken UTF-8, special tokens and added words included."""
    ids = np.random.default_rng(seed).integers(0, len(tokenizer), 60).tolist()
    detokenizer = Detokenizer(tokens)
    pieces = [detokenizer.push([token]) for token in ids]
    whole = "".join(pieces) + detokenizer.flush()
    assert whole == tokenizer.decode(ids, skip_special_tokens=True)


def test_the_older_tokenizer_files_say_the_same(
    tokens: TokenBytes, tiny_checkpoint: str, tmp_path: Path
) -> None:
    tokenizer = json.loads((Path(tiny_checkpoint) / "tokenizer.json").read_text())
    added = {str(token["id"]): token for token in tokenizer["added_tokens"]}
    (tmp_path / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    config = {"added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    older = TokenBytes(str(tmp_path))
    ids = range(len(tokenizer["model"]["vocab"]) + len(added) + 5)
    assert [older[i] for i in ids] == [tokens[i] for i in ids]
    assert any(tokens[i] for i in ids)


def test_a_character_waits_for_its_last_byte(tokens: TokenBytes, tokenizer: Any) -> None:
    ids = tokenizer("é🙂")["input_ids"]
    assert len(ids) > 2, "the tiny tokenizer spells these byte by byte"
    detokenizer = Detokenizer(tokens)
    pieces = [detokenizer.push([token]) for token in ids]
    assert [piece for piece in pieces if piece] == ["é", "🙂"]
    assert detokenizer.flush() == ""


def test_ids_without_a_token_have_no_text(tokens: TokenBytes) -> None:
    assert Detokenizer(tokens).push([100_000]) == ""


def test_text_leaves_with_every_token(stage: Stage, tokenizer: Any) -> None:
    ids = tokenizer("She sells sea shells.")["input_ids"]
    stage.open()
    for token in ids:
        stage.push(token)
        stage.wait()
        assert stage.outbox.events[-1].token_ids == (token,)
    assert stage.outbox.text == "She sells sea shells."
    assert stage.scheduler.stats()["running"] == 1


def test_the_end_token_is_neither_text_nor_a_token(stage: Stage, tokenizer: Any) -> None:
    ids = tokenizer("Hello, how are you?")["input_ids"]
    reply(stage, [*ids, tokenizer.eos_token_id], "stop", RequestParams())
    assert stage.outbox.text == "Hello, how are you?"
    assert stage.outbox.token_ids == ids
    assert stage.outbox.ended == [("r", "stop", Usage())]
    assert stage.scheduler.stats()["running"] == 0


def test_a_reply_of_only_the_end_token_has_no_events(stage: Stage, tokenizer: Any) -> None:
    reply(stage, [tokenizer.eos_token_id], "stop", RequestParams())
    assert stage.outbox.events == []
    assert stage.outbox.ended == [("r", "stop", Usage())]


def test_an_ignored_end_token_is_a_token_without_text(stage: Stage, tokenizer: Any) -> None:
    (letter,) = tokenizer("a")["input_ids"]
    ids = [letter, tokenizer.eos_token_id, letter]
    reply(stage, ids, "length", RequestParams(sampling=SamplingParams(ignore_eos=True)))
    assert stage.outbox.text == "aa"
    assert stage.outbox.token_ids == ids
    assert stage.outbox.ended[0][1] == "length"


def test_a_stop_token_of_the_request_is_left_out(stage: Stage, tokenizer: Any) -> None:
    first, last = tokenizer("ab", add_special_tokens=False)["input_ids"][0], 5
    params = RequestParams(stage_params={"thinker": SamplingParams(stop_token_ids=(last,))})
    reply(stage, [first, last], "stop", params)
    assert stage.outbox.token_ids == [first]


def test_a_stop_string_is_held_back_and_never_shown(stage: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "one END"]
    params = RequestParams(sampling=SamplingParams(stop=("END",)))
    reply(stage, ids, "stop", params)
    assert stage.outbox.text == "one "
    assert stage.outbox.token_ids == ids
    assert stage.outbox.ended[0][1] == "stop"


def test_what_only_began_a_stop_string_is_shown_at_the_end(stage: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "the EN"]
    reply(stage, ids, "length", RequestParams(sampling=SamplingParams(stop=("END",))))
    assert stage.outbox.text == "the EN"


def test_a_character_cut_by_the_token_limit_is_marked(stage: Stage, tokenizer: Any) -> None:
    ids = tokenizer("🙂")["input_ids"][:-1]
    reply(stage, ids, "length", RequestParams())
    assert stage.outbox.text == tokenizer.decode(ids)
    assert "\ufffd" in stage.outbox.text


def test_replies_do_not_mix_and_abort_frees_one(stage: Stage, tokenizer: Any) -> None:
    emoji = tokenizer("🙂")["input_ids"]
    stage.open("a")
    stage.open("b")
    stage.push(emoji[0], request_id="a")
    stage.inbox.put(Abort("a"))
    for token in emoji[1:]:
        stage.push(token, request_id="a")
    for token in emoji:
        stage.push(token, request_id="b")
    stage.push(tokenizer.eos_token_id, "stop", request_id="b")
    stage.wait_end()
    assert stage.outbox.text == "🙂"
    assert [ended[0] for ended in stage.outbox.ended] == ["b"]
    assert stage.outbox.let_go == ["a"]
    assert stage.scheduler.stats()["running"] == 0
    assert stage.scheduler.stats()["requests"] == 2


def test_tokens_that_end_without_a_reason_fail_the_request(stage: Stage) -> None:
    stage.open()
    stage.push(5)
    stage.inbox.put(ChunksDone("r", "thinker"))
    stage.wait_end()
    assert stage.outbox.failed[0].status == 500


def test_an_empty_stop_string_fails_only_its_request(stage: Stage, tokenizer: Any) -> None:
    stage.open("bad", RequestParams(sampling=SamplingParams(stop=("",))))
    stage.wait()
    assert stage.outbox.failed[0].status == 400
    reply(stage, [tokenizer.eos_token_id], "stop", RequestParams())
    stage.wait()
    assert [ended[0] for ended in stage.outbox.ended] == ["r"]


def said(stage: Stage, channel: str) -> str:
    return "".join(event.text for event in stage.outbox.events if event.channel == channel)


def test_a_thought_and_an_answer_leave_on_their_own_channels(
    thinking: Stage, tokenizer: Any
) -> None:
    thought = tokenizer("<think>\nthe fox</think>")["input_ids"]
    answer = tokenizer("\n\nThe dog.")["input_ids"]
    ids = [*thought, *answer]
    reply(thinking, [*ids, tokenizer.eos_token_id], "stop", RequestParams())
    assert said(thinking, "reasoning") == "the fox"
    assert said(thinking, "content") == "The dog."
    assert thinking.outbox.token_ids == ids
    assert thinking.outbox.ended == [("r", "stop", Usage(reasoning_tokens=len(thought)))]


def test_the_reply_to_a_raw_prompt_is_text_as_it_is(thinking: Stage, tokenizer: Any) -> None:
    ids = tokenizer.encode("<think>the fox</think>\n\nThe dog.")
    reply(thinking, ids, "length", RequestParams(), raw=True, opened=True)
    assert said(thinking, "content") == "<think>the fox</think>\n\nThe dog."
    assert said(thinking, "reasoning") == ""
    assert thinking.outbox.ended == [("r", "length", Usage())]


def test_a_thought_the_prompt_has_opened_needs_no_tag(thinking: Stage, tokenizer: Any) -> None:
    thought = tokenizer("the fox</think>")["input_ids"]
    ids = [*thought, *tokenizer("dog")["input_ids"]]
    reply(thinking, ids, "length", RequestParams(), opened=True)
    assert said(thinking, "reasoning") == "the fox"
    assert said(thinking, "content") == "dog"
    assert thinking.outbox.ended == [("r", "length", Usage(reasoning_tokens=len(thought)))]


def test_a_thought_cut_by_the_limit_is_all_reasoning(thinking: Stage, tokenizer: Any) -> None:
    ids = [*tokenizer("the fox")["input_ids"], tokenizer("<")["input_ids"][0]]
    reply(thinking, ids, "length", RequestParams(), opened=True)
    assert said(thinking, "reasoning") == "the fox<"
    assert said(thinking, "content") == ""
    assert thinking.outbox.ended == [("r", "length", Usage(reasoning_tokens=len(ids)))]


def test_a_tag_spelled_letter_by_letter_is_a_tag(thinking: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "<think>one</think>two"]
    reply(thinking, ids, "length", RequestParams())
    assert said(thinking, "reasoning") == "one"
    assert said(thinking, "content") == "two"


def test_a_stop_string_in_the_answer_ends_it(thinking: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "one</think>two EN"]
    params = RequestParams(sampling=SamplingParams(stop=("EN",)))
    reply(thinking, ids, "stop", params, opened=True)
    assert said(thinking, "content") == "two "


def test_a_model_that_does_not_reason_may_write_about_tags(stage: Stage, tokenizer: Any) -> None:
    ids = tokenizer("<think>the fox</think>")["input_ids"]
    reply(stage, ids, "length", RequestParams(), opened=True)
    assert said(stage, "content") == "<think>the fox</think>"
    assert stage.outbox.ended == [("r", "length", Usage())]


def measured(
    stage: Stage,
    ids: list[int],
    last: FinishReason,
    *,
    stop: tuple[str, ...] = (),
) -> list[tuple[int, float]]:
    """Reply with token n at log-probability -n; what was told of which token, in order."""
    stage.open(params=RequestParams(sampling=SamplingParams(stop=stop, logprobs=1)))
    for place, token in enumerate(ids):
        found = Logprobs(token=-float(place), top_ids=[token], top=[-float(place)])
        stage.push(token, last if place == len(ids) - 1 else None, logprobs=found)
    stage.wait_end()
    told = [token for event in stage.outbox.events for token in event.logprobs]
    return [(token.token_id, token.logprob) for token in told]


def numbered(ids: list[int]) -> list[tuple[int, float]]:
    return [(token, -float(place)) for place, token in enumerate(ids)]


def test_logprobs_of_all_but_the_end_token_are_told(stage: Stage, tokenizer: Any) -> None:
    ids = tokenizer("She sells 🙂 shells.")["input_ids"]
    assert measured(stage, [*ids, tokenizer.eos_token_id], "stop") == numbered(ids)
    told = [token for event in stage.outbox.events for token in event.logprobs]
    assert b"".join(token.spelling for token in told).decode() == "She sells 🙂 shells."
    assert all(token.top[0].spelling == token.spelling for token in told)


def test_logprobs_of_a_stop_string_are_never_told(stage: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "one EN, END"]
    assert measured(stage, ids, "stop", stop=("END",)) == numbered(ids)[:-3]


def test_logprobs_of_what_only_began_a_stop_string_are_told(stage: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "the EN"]
    assert measured(stage, ids, "length", stop=("END",)) == numbered(ids)


def test_logprobs_never_run_ahead_of_the_text(stage: Stage, tokenizer: Any) -> None:
    ids = [tokenizer(letter)["input_ids"][0] for letter in "a ENb"] + tokenizer("🙂")["input_ids"]
    measured(stage, ids, "length", stop=("END",))
    shown = told = b""
    for event in stage.outbox.events:
        shown += event.text.encode()
        told += b"".join(token.spelling for token in event.logprobs)
        assert shown.startswith(told)
    assert told == shown


def test_logprobs_of_a_character_cut_short_are_told_at_the_end(
    stage: Stage, tokenizer: Any
) -> None:
    ids = tokenizer("🙂")["input_ids"][:-1]
    assert measured(stage, ids, "length") == numbered(ids)


def test_special_tokens_are_told_by_name(stage: Stage, tokens: TokenBytes, tokenizer: Any) -> None:
    assert tokens.spelling(tokenizer.eos_token_id) == tokenizer.eos_token.encode()
    assert tokens.spelling(100_000) == b""


def test_logprobs_of_thoughts_are_on_their_channel(thinking: Stage, tokenizer: Any) -> None:
    thought = tokenizer("<think>the fox</think>")["input_ids"]
    answer = tokenizer("The dog.")["input_ids"]
    assert measured(thinking, [*thought, *answer], "length") == numbered([*thought, *answer])
    channels = {
        channel: [
            token.token_id
            for event in thinking.outbox.events
            if event.channel == channel
            for token in event.logprobs
        ]
        for channel in ("reasoning", "content")
    }
    assert channels == {"reasoning": thought, "content": answer}


def test_calls_are_told_as_calls(stage: Stage, tokens: TokenBytes, tokenizer: Any) -> None:
    stage.open(calls=True)
    text = 'Hm. 🙂 <tool_call>\n{"name": "f", "arguments": {"a": "é🙂"}}\n</tool_call>'
    for byte in text.encode():
        found = Logprobs(token=-1.0, top_ids=[], top=[])
        stage.push(byte_token(tokens, byte), logprobs=found)
    stage.push(tokenizer.eos_token_id, "stop")
    stage.wait_end()
    said = [event for event in stage.outbox.events if isinstance(event, TextDelta)]
    calls = [event for event in stage.outbox.events if isinstance(event, ToolCallDelta)]
    assert "".join(event.text for event in said) == "Hm. 🙂"
    assert "".join(event.arguments for event in calls) == '{"a": "é🙂"}'
    assert [event.name for event in calls if event.name] == ["f"]
    assert "�" not in "".join(event.arguments for event in calls)
    assert len([token for event in said for token in event.token_ids]) == len(text.encode())
    spelled = b"".join(token.spelling for event in said for token in event.logprobs)
    assert spelled.decode() == "Hm. 🙂"
    [(_, reason, _)] = stage.outbox.ended
    assert reason == "tool_calls"


@pytest.mark.parametrize(
    ("written", "end", "reason", "arguments"),
    [
        ('{"a"', "length", "length", '{"a"'),
        ('{"a"', "eos", "tool_calls", '{"a"'),
        ('{"a"</tool_call>', "eos", "tool_calls", '{"a"'),
        ('{"a"</tool_call>', "length", "length", '{"a"'),
        ('{"a": 1}', "length", "length", '{"a": 1}'),
        ('{"a": 1}', "eos", "tool_calls", '{"a": 1}'),
        ('{"a" STOP', "string", "stop", '{"a" '),
        ('{"a": 1}</tool_call> STOP', "string", "tool_calls", '{"a": 1}'),
    ],
)
def test_arguments_come_as_they_are_with_the_reason_that_ended_them(
    stage: Stage,
    tokens: TokenBytes,
    tokenizer: Any,
    written: str,
    end: str,
    reason: str,
    arguments: str,
) -> None:
    """Only what cut the reply short is a reason of its own; a call that the model itself left
    unfinished is one."""
    stage.open(params=RequestParams(sampling=SamplingParams(stop=("STOP",))), calls=True)
    text = f'<tool_call>\n{{"name": "f", "arguments": {written}'.encode()
    last = {"length": "length", "eos": None, "string": "stop"}[end]
    for place, byte in enumerate(text):
        stage.push(byte_token(tokens, byte), last if place == len(text) - 1 else None)
    if end == "eos":
        stage.push(tokenizer.eos_token_id, "stop")
    stage.wait_end()
    assert [ended for _, ended, _ in stage.outbox.ended] == [reason]
    calls = [event for event in stage.outbox.events if isinstance(event, ToolCallDelta)]
    assert "".join(event.arguments for event in calls) == arguments


def byte_token(tokens: TokenBytes, byte: int) -> int:
    return next(token for token in range(256) if tokens[token] == bytes([byte]))
