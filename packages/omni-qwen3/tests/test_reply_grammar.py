"""Grammars of whole replies on the tiny random model, whatever the engine does meanwhile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.engine.base import EngineRequest
from omni_core.engine.grammar import Grammars
from omni_core.engine.torch_engine import TorchEngine, TorchEngineConfig
from omni_core.errors import RequestError
from omni_core.specs import StageConfig, StageContext
from omni_core.text.calls import CallParser
from omni_core.text.detokenize import TokenBytes
from omni_core.text.reply_grammar import reply_grammar
from omni_core.types import Grammar, RequestParams, SamplingParams, Tool, ToolUse
from omni_qwen3 import thinker
from omni_qwen3.defaults import eos_token_ids
from omni_qwen3.rowkeys import row_keys
from omni_qwen3.thinker_prompts import ThinkerInputs

CITY = {
    "type": "object",
    "$defs": {"city": {"enum": ["Paris", "Rome"]}},
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, TIME = Tool(name="weather", parameters=CITY), Tool(name="time")


@dataclass(frozen=True)
class Model:
    """The tiny Thinker, and what turns its tokens into text."""

    runner: thinker.ThinkerRunner
    grammars: Grammars
    tokens: TokenBytes
    eos: frozenset[int]

    def engine(self, **config: Any) -> TorchEngine:
        return TorchEngine(self.runner, TorchEngineConfig(max_running=4, **config))

    def request(self, name: str, grammar: Grammar | None, **sampling: Any) -> EngineRequest:
        ids = np.array([ord(letter) for letter in name])
        line = np.arange(len(ids), dtype=np.float32)
        prepared: Any = {"input_ids": ids, "positions": np.stack([line] * 3), "rope_delta": 0.0}
        chosen = {"temperature": 1.0, "max_tokens": 100, **sampling}
        return EngineRequest(
            request_id=name,
            prompt_len=len(ids),
            inputs=ThinkerInputs(prepared, conditions=False),
            params=RequestParams(),
            sampling=SamplingParams(**chosen),
            prompt_token_ids=tuple(ids.tolist()),
            row_keys=row_keys(prepared),
            constraint=None if grammar is None else self.grammars.compile(grammar),
        )

    def replies(self, engine: TorchEngine, requests: list[EngineRequest]) -> dict[str, list[int]]:
        """All tokens of each, end tokens included."""
        for request in requests:
            engine.add(request)
        said: dict[str, list[int]] = {request.request_id: [] for request in requests}
        while engine.runnable():
            for output in engine.step():
                assert output.error is None
                said[output.request_id].append(output.token)
        return said

    def text(self, tokens: list[int]) -> str | None:
        """What a reply says; None if it ended for its length."""
        return self.tokens.text(tokens[:-1]) if tokens[-1] in self.eos else None

    def reply(self, grammar: Grammar | None, seed: int) -> str | None:
        requests = [self.request("alone", grammar, seed=seed)]
        return self.text(self.replies(self.engine(), requests)["alone"])


@pytest.fixture(scope="module")
def model(tiny_checkpoint: str) -> Model:
    context = StageContext(
        stage=StageConfig(name="thinker", factory=thinker.build),
        model_path=tiny_checkpoint,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )
    runner = thinker.load_runner(context)
    tokens, eos = TokenBytes(tiny_checkpoint), eos_token_ids(tiny_checkpoint)
    grammars = Grammars(lambda: tokens.__getitem__, runner.vocab_size, eos)
    return Model(runner, grammars, tokens, eos)


def asked(schema: Any) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema), param="response_format")


SCALARS: Any = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": -9, "maximum": 99},
     {"enum": ["red", "gr\u00fcn", 5, None]}, {"type": "string", "maxLength": 3},
     {"type": "number"}, {"const": "\U0001f642"}]
)  # fmt: skip


def larger(inner: Any) -> Any:
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner,
        st.integers(0, 2),
    )  # fmt: skip
    objects = st.dictionaries(st.sampled_from(["a", "b c", 'q"']), inner, max_size=2).map(
        lambda fields: {"type": "object", "properties": fields, "required": list(fields),
                        "additionalProperties": False}
    )  # fmt: skip
    return arrays | objects | st.lists(inner, min_size=1, max_size=2).map(lambda o: {"anyOf": o})


SCHEMAS: Any = st.recursive(SCALARS, larger, max_leaves=4)
TYPES: dict[str, Any] = {
    "boolean": bool, "null": type(None), "integer": int, "number": (int, float), "string": str,
    "array": list, "object": dict,
}  # fmt: skip


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is what a schema of the kind above demands."""
    match schema:
        case {"anyOf": options}:
            return any(satisfies(value, option) for option in options)
        case {"enum": options}:
            return value in options
        case {"const": only}:
            return bool(value == only)
    if not isinstance(value, TYPES[schema["type"]]):
        return False
    match value:
        case dict():
            fields = schema["properties"]
            return set(value) == set(fields) and all(satisfies(value[f], fields[f]) for f in fields)
        case list():
            return len(value) <= schema["maxItems"] and all(
                satisfies(item, schema["items"]) for item in value
            )
        case str():
            return len(value) <= schema.get("maxLength", 99)
        case int() if "maximum" in schema:
            return bool(schema["minimum"] <= value <= schema["maximum"])
        case _:
            return True


@settings(max_examples=10, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 99))
def test_replies_satisfy_their_schema_or_are_cut(model: Model, schema: Any, seed: int) -> None:
    text = model.reply(asked(schema), seed)
    assert text is None or satisfies(json.loads(text), schema)


TOGETHER: dict[str, tuple[Grammar | None, int]] = {
    "free one": (None, 60),
    "json": (asked({"type": "object"}), 60),
    "free": (None, 40),
    "city": (asked(CITY), 60),
}
"""{name: grammar and most tokens}."""


def test_neighbours_look_ahead_and_retraction_change_nothing(model: Model) -> None:
    def request(name: str) -> EngineRequest:
        grammar, most = TOGETHER[name]
        return model.request(name, grammar, seed=7, max_tokens=most, min_tokens=30)

    alone = {name: model.replies(model.engine(), [request(name)])[name] for name in TOGETHER}
    kv = model.runner.kv
    page_bytes = 2 * kv.layers * kv.kv_heads * kv.head_dim * 4 * 16
    engine = model.engine(lookahead="on", kv_budget_bytes=6 * page_bytes, prefix_cache=False)
    assert model.replies(engine, list(map(request, TOGETHER))) == alone
    stats = engine.stats()
    assert stats.lookahead_steps > 0
    assert stats.retractions > 0


@pytest.mark.parametrize("seed", [1])
def test_calls_that_must_be_are_calls_and_nothing_else(model: Model, seed: int) -> None:
    use = ToolUse(tools=(WEATHER, TIME), required=True, only="weather", parallel=False)
    text = model.reply(reply_grammar(None, use, opened=False), seed)
    assert text is not None
    parser = CallParser()
    runs = [*parser.push(text), *parser.flush(cut=False)]
    assert not [run for run in runs if isinstance(run, str)]
    assert parser.calls == 1
    arguments = "".join(run.arguments for run in runs if not isinstance(run, str))
    assert json.loads(arguments)["city"] in ("Paris", "Rome")


def walked(model: Model, grammar: Grammar | None, text: str) -> bool:
    """Whether the tokens of a text, byte by byte, are allowed by a grammar, and the end after."""
    assert grammar is not None
    constraint = model.grammars.compile(grammar)
    byte_tokens = {model.tokens[token]: token for token in range(256)}
    for byte in text.encode():
        token = byte_tokens[bytes([byte])]
        if not allows(constraint, token):
            return False
        constraint.advance(token)
    return allows(constraint, min(model.eos))


def allows(constraint: Any, token: int) -> bool:
    words = constraint.allowed(may_end=True)
    return bool(words[token // 32] >> token % 32 & 1)


RIGHT = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRONG = RIGHT.replace("Rome", "Oslo")
OTHER = '<tool_call>\n{"name": "time", "arguments": {"x": 1}}\n</tool_call>'
STRICT = Tool(name="weather", parameters=CITY, strict=True)


ANY = {"type": "object"}
BOTH = (WEATHER, TIME)
MAY_BE: list[tuple[ToolUse | None, Any, bool, list[str], list[str]]] = [
    # functions, answer, whether a thought is open, what may be said, what may not
    (ToolUse(tools=(STRICT, TIME)), None, False, ["", f"Hm. {RIGHT}", RIGHT + OTHER], [WRONG]),
    (ToolUse(tools=(TIME,), parallel=False), None, False, ["Hm.", OTHER], [OTHER * 2, RIGHT]),
    (ToolUse(tools=BOTH, required=True), None, False, [RIGHT, f"{RIGHT}\n{OTHER}"], ["", "Hm."]),
    (ToolUse(tools=BOTH, required=True, only="time"), None, False, [OTHER], [RIGHT]),
    (ToolUse(tools=(TIME,)), ANY, False, ["{}", OTHER], ["Hm.", f"{{}}{OTHER}"]),
    (ToolUse(tools=(TIME,), required=True), ANY, False, [OTHER], ["{}"]),
    (ToolUse(tools=(TIME,), required=True), None, True, [f"Hm.</think>\n\n{OTHER}"], [OTHER]),
    (None, {"const": 1}, True, ["I <b> {}</think>\n\n1", "</think>1"], ["1", "</think>2"]),
]  # fmt: skip


@pytest.mark.parametrize(("use", "answer", "opened", "right", "wrong"), MAY_BE)
def test_what_a_reply_may_be(
    model: Model, use: ToolUse | None, answer: Any, opened: bool, right: list[str], wrong: list[str]
) -> None:
    grammar = reply_grammar(None if answer is None else asked(answer), use, opened=opened)
    assert [walked(model, grammar, text) for text in right] == [True] * len(right)
    assert [walked(model, grammar, text) for text in wrong] == [False] * len(wrong)


def test_free_replies_have_no_grammar() -> None:
    assert reply_grammar(None, ToolUse(tools=(WEATHER, TIME)), opened=True) is None
    assert reply_grammar(None, None, opened=False) is None
    assert reply_grammar(asked({}), None, opened=False) == asked({})


def test_a_lark_grammar_stands_alone() -> None:
    lark = Grammar(kind="lark", text='start: "a"', param="grammar")
    with pytest.raises(RequestError) as refused:
        reply_grammar(lark, None, opened=True)
    assert refused.value.param == "grammar"


def test_keywords_that_cannot_be_enforced_are_refused_for_strict_functions_only(
    model: Model,
) -> None:
    odd = {"type": "object", "properties": {"a": {"not": {}}}}
    for strict in (False, True):
        use = ToolUse(tools=(Tool(name="odd", parameters=odd, strict=strict),), required=True)
        grammar = reply_grammar(None, use, opened=False)
        assert grammar is not None
        if strict:
            with pytest.raises(RequestError, match="'tools' cannot be kept to"):
                model.grammars.compile(grammar)
        else:
            model.grammars.compile(grammar)
