"""Grammars over a small vocabulary: what may come next, what is refused, which rows are masked."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.engine.base import EngineRequest, Sequence
from omni_core.engine.common.active import ActiveSequence
from omni_core.engine.common.rules import check_sampling
from omni_core.engine.common.tokens import TokenSampler
from omni_core.engine.common.transfer import HostCopy
from omni_core.engine.grammar import MAX_GRAMMAR_BYTES, Grammars, TokenGrammar
from omni_core.errors import OmniError, RequestError
from omni_core.types import Grammar, RequestParams, SamplingParams

PIECES = [bytes([byte]) for byte in range(256)] + [
    b'{"',
    b'": ',
    b"true",
    b"</call>",
    b"",
    b"",
    b"",
]
EOS = frozenset({260, 261})
SILENT = 262
"""Stands for no text."""
VOCAB = 300
"""More than the tokenizer knows."""
FACTS = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "é🙂"]}},
         "required": ["a", "b"], "additionalProperties": False}  # fmt: skip


def spelling(token: int) -> bytes:
    return PIECES[token] if token < len(PIECES) else b""


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(lambda: spelling, VOCAB, EOS)


def schema(value: Any, param: str | None = None) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(value), param=param)


def ids(words: np.ndarray[Any, Any]) -> set[int]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def walk(grammar: TokenGrammar, seed: int, most: int = 300) -> bytes | None:
    """The text of random tokens among those that may come; None if it does not end."""
    chooser, said = random.Random(seed), b""
    for _ in range(most):
        allowed = ids(grammar.allowed(may_end=True))
        assert allowed
        assert max(allowed) < len(PIECES)
        assert SILENT not in allowed
        token = chooser.choice(sorted(allowed))
        if token in EOS:
            return said
        grammar.advance(token)
        said += spelling(token)
    return None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_may_come_is_what_was_asked_for(grammars: Grammars, seed: int) -> None:
    said = walk(grammars.compile(schema(FACTS)), seed)
    assert said is not None
    facts = json.loads(said)
    assert set(facts) == {"a", "b"}
    assert facts["b"] in ("x", "é🙂")


def test_a_reply_ends_only_where_the_grammar_does(grammars: Grammars) -> None:
    number = grammars.compile(schema({"type": "integer"}))
    assert not ids(number.allowed(may_end=True)) & EOS
    number.advance(ord("4"))
    assert ids(number.allowed(may_end=True)) >= EOS
    assert not ids(number.allowed(may_end=False)) & EOS
    truth = grammars.compile(schema({"const": True}))
    truth.advance(258)
    assert ids(truth.allowed(may_end=False)) == EOS, "nothing else may come"


def test_replies_of_one_grammar_do_not_disturb_each_other(grammars: Grammars) -> None:
    one, other = grammars.compile(schema(FACTS)), grammars.compile(schema(FACTS))
    before = ids(other.allowed(may_end=True))
    one.advance(256)
    assert ids(other.allowed(may_end=True)) == before != ids(one.allowed(may_end=True))


def test_white_space_cannot_go_on_for_ever(grammars: Grammars) -> None:
    anything = grammars.compile(schema({"type": "object"}))
    anything.advance(ord("{"))
    anything.advance(ord("\n"))
    for _ in range(24):
        anything.advance(ord(" "))
    assert ord(" ") not in ids(anything.allowed(may_end=True))


@pytest.mark.parametrize(
    "value",
    [{"not": {}}, {"type": "nothing"}, {"$ref": "http://h/s"},
     {"pattern": "(?=a)", "type": "string"}, False],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_refused_by_name(grammars: Grammars, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        grammars.compile(schema(value, "response_format.schema"))
    assert refused.value.param == "response_format.schema"
    assert "'response_format.schema' cannot be kept to" in refused.value.message
    assert "\n" not in refused.value.message


COSTLY = {"type": "string", "pattern": "(a{1,999}){1,999}(b{1,999}){1,999}" * 9}


def deep(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize(
    "text",
    [deep(10_000), " " * (MAX_GRAMMAR_BYTES + 1), "{", json.dumps(COSTLY)],
    ids=["deep", "long", "cut", "costly"],
)  # fmt: skip
def test_hostile_grammars_end_soon(grammars: Grammars, text: str) -> None:
    grammar = Grammar(kind="json_schema", text=text)
    done: list[TokenGrammar | OmniError] = []
    heard = threading.Event()
    grammars.submit(grammar, lambda result: (done.append(result), heard.set()))  # type: ignore[func-returns-value]
    assert heard.wait(10)
    if isinstance(done[0], TokenGrammar):
        walk(done[0], 0, most=20)
    else:
        assert isinstance(done[0], RequestError)


def seated(sampler: TokenSampler, row: int, **more: Any) -> ActiveSequence:
    constraint = more.pop("constraint", None)
    request = EngineRequest(
        request_id=f"r{row}", prompt_len=1, inputs=None, params=RequestParams(),
        sampling=SamplingParams(temperature=0.0, max_tokens=9, **more), constraint=constraint,
    )  # fmt: skip
    active = ActiveSequence.of(request, eos_token_ids=EOS, max_len=99, text=lambda ids: "")
    active.seq = Sequence(request=request, row=row)
    sampler.seat(active)
    return active


def test_only_rows_with_a_grammar_are_masked(grammars: Grammars) -> None:
    sampler = TokenSampler(4, VOCAB, None, torch.device("cpu"), HostCopy)
    truth = grammars.compile(schema({"type": "boolean"}))
    number = grammars.compile(schema({"type": "integer"}))
    number.advance(ord("1"))
    rows = [
        seated(sampler, 0),
        seated(sampler, 1, constraint=truth, repetition_penalty=1.5),
        seated(sampler, 2, constraint=number, min_tokens=5),
    ]
    logits = torch.zeros(3, VOCAB)
    logits[:, 299], logits[:, 260], logits[:, 258], logits[:, ord("7")] = 9.0, 8.0, 2.0, 1.0
    tokens, _ = sampler.draw(rows, logits).wait()
    assert tokens == [299, 258, ord("7")]


def test_a_grammar_that_lost_its_way_fails_the_request(grammars: Grammars) -> None:
    sampler = TokenSampler(4, VOCAB, None, torch.device("cpu"), HostCopy)
    active = seated(sampler, 0, constraint=grammars.compile(schema({"type": "boolean"})))
    active.in_flight = 2
    assert active.take(ord("x")).error is None
    verdict = active.take(260)
    assert verdict.finish_reason == "stop"
    assert verdict.error is not None


def test_ignoring_the_end_and_keeping_to_a_grammar_contradict_each_other() -> None:
    params = SamplingParams(ignore_eos=True, grammar=schema({}))
    with pytest.raises(RequestError) as refused:
        check_sampling(params, VOCAB)
    assert refused.value.param == "ignore_eos"
