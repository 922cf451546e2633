"""The parity cases under all that an engine may do to a request: company, prompts in chunks, cached
prefixes, retraction, look-ahead, compiled steps. Ids and codes stay those of transformers.

Each variant proves by the stages' counters that what it is about took place. By default a few
pipelines run that do all of it between them; `nox -s parity_variants` runs what is marked `matrix`
as well: every variant by itself, and compiled steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import pytest_asyncio

from asking import (
    Company,
    Reply,
    check,
    check_text,
    counters,
    request_for,
    run,
    run_alone,
    with_params,
)
from cases import CASES, Case, Message, ask, audio, image, video
from expected import load_reference
from omni_core.engine.torch_engine.kv import PAGE_SIZE
from omni_core.media import MediaLimits
from omni_core.pipeline import Pipeline
from omni_core.types import Request, SamplingParams
from omni_qwen3.config import DecoderConfig, load_config
from omni_qwen3.preprocess.stage import Preprocessor

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 16
LONG_TEXT = [case for case in CASES if load_reference(case.name).text_ids.size > 30]
LONG_SPEECH = [case for case in CASES if load_reference(case.name).codes.shape[1] > 40]
POOL_TOKENS = 16 * PAGE_SIZE
"""Holds the longest case and little more."""
FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Options of the stages, and what they must lead to."""

    options: Mapping[str, str] = field(default_factory=dict)
    """{"stage.option": value}."""
    small_pool: bool = False
    fires: Mapping[str, int] = field(default_factory=dict)
    """{"stage.counter": by how much it grows, at least}, while 16 are in flight."""
    never: tuple[str, ...] = ()
    """Counters that stay where they are."""


CHUNKS = {"thinker.prefill_chunk": "16", "talker_ar.prefill_chunk": "16"}
CUT = {"thinker.cut_prompts": 5, "talker_ar.cut_prompts": 5}
RETRACTED = {"thinker.retractions": 5, "talker_ar.retractions": 5}
AHEAD = {"thinker.lookahead_steps": 20}
HITS = {"thinker.prefix_hit_tokens": 100}
NOT_CUT = ("thinker.cut_prompts", "talker_ar.cut_prompts")
NOT_RETRACTED = ("thinker.retractions", "talker_ar.retractions")
NOT_AHEAD = ("thinker.lookahead_steps", "talker_ar.lookahead_steps")

VARIANTS = {
    "prefixes": Variant(fires=HITS, never=("talker_ar.prefix_hit_tokens",)),
    "plain": Variant(
        options={
            "thinker.lookahead": "off",
            "thinker.prefix_cache": "false",
            "thinker.prefill_chunk": "4096",
            "talker_ar.prefill_chunk": "4096",
        },
        never=(*NOT_CUT, *NOT_RETRACTED, *NOT_AHEAD, "thinker.prefix_hit_tokens"),
    ),
    # Of a prompt that is in the cache but for a page, there is nothing left to cut.
    "chunks": Variant(options={**CHUNKS, "thinker.prefix_cache": "false"}, fires=CUT),
    "retraction": Variant(small_pool=True, fires=RETRACTED),
    "lookahead": Variant(options={"thinker.lookahead": "on"}, fires=AHEAD),
    "everything": Variant(
        options={**CHUNKS, "thinker.lookahead": "on"},
        small_pool=True,
        fires={**CUT, **RETRACTED, **AHEAD, **HITS},
    ),
}
DEFAULT = ("prefixes", "everything")
COMPILED = ("plain", "everything")
COMPILED_CALLS = {
    "thinker.step_calls_compiled": 20,
    "talker_ar.step_calls_compiled": 100,
    "code2wav.step_calls_compiled": 20,
}
CHOICES = [
    *(pytest.param((name, "off"), id=f"{name}-eager") for name in DEFAULT),
    *(
        pytest.param((name, "off"), id=f"{name}-eager", marks=pytest.mark.matrix)
        for name in VARIANTS
        if name not in DEFAULT
    ),
    *(
        pytest.param((name, "wait"), id=f"{name}-compiled", marks=pytest.mark.matrix)
        for name in COMPILED
    ),
]


@dataclass(frozen=True)
class Served:
    """A running pipeline and what it is set up to show."""

    pipeline: Pipeline
    variant: Variant
    compiled: bool


def pool_bytes(decoder: DecoderConfig) -> int:
    """Keys and values of `POOL_TOKENS` tokens."""
    per_token = 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * FLOAT32_BYTES
    return POOL_TOKENS * per_token


def options_of(variant: Variant, checkpoint: str) -> dict[str, str]:
    options = dict(variant.options)
    if variant.small_pool:
        config = load_config(checkpoint)
        decoders = {
            "thinker": config.thinker.decoder,
            "talker_ar": config.require_talker().decoder,
        }
        for stage, decoder in decoders.items():
            options[f"{stage}.kv_budget_bytes"] = str(pool_bytes(decoder))
    return options


@pytest_asyncio.fixture(params=CHOICES, scope="module", loop_scope="module")
async def served(
    request: pytest.FixtureRequest, tiny_checkpoint: str, ar_engine: str
) -> AsyncIterator[Served]:
    name, compile = request.param
    variant = VARIANTS[name]
    overrides = options_of(variant, tiny_checkpoint)
    loaded = Pipeline.load(
        tiny_checkpoint, device="cpu", compile=compile, overrides=overrides, ar_engine=ar_engine
    )
    async with loaded as pipeline:
        yield Served(pipeline, variant, compile == "wait")


def assert_fired(
    served: Served, before: Mapping[str, float], after: Mapping[str, float], *, once: bool = False
) -> None:
    """What the variant is about took place between two readings, as often as it says or `once`."""
    grown = {name: after[name] - before[name] for name in after}
    least = {**served.variant.fires}
    if served.compiled:
        least |= COMPILED_CALLS
    wanted = dict.fromkeys(least, 1) if once else least
    assert {name: grown[name] for name, count in wanted.items() if grown[name] < count} == {}
    assert {name: grown[name] for name in served.variant.never if grown[name]} == {}
    if not served.variant.small_pool:  # rows of several requests in one step
        for stage in ("thinker", "talker_ar"):
            assert grown[f"{stage}.tokens"] > grown[f"{stage}.steps"]


def silent_company(served: Served) -> list[Case]:
    """Replies that are not spoken do not wait for the Talker: the Thinker runs out of memory."""
    return LONG_TEXT * 4 if served.variant.small_pool else []


def spoken_company(served: Served) -> list[Case]:
    """Long replies that are spoken, one behind the other: the Talker runs out of memory, whatever
    the pace of the Thinker."""
    return LONG_SPEECH * 8 if served.variant.small_pool else []


def unspoken(case: Case) -> Request:
    return with_params(request_for(case), modalities=("text",))


async def test_sixteen_in_flight(served: Served) -> None:
    company = Company(served.pipeline, AT_ONCE)
    before = await counters(served.pipeline)
    silent = silent_company(served)
    spoken = [*CASES * 2, *spoken_company(served)]
    replies = await company.run([*map(unspoken, silent), *(request_for(case) for case in spoken)])
    for case, reply in zip(silent, replies, strict=False):
        check_text(case, reply)
    for case, reply in zip(spoken, replies[len(silent) :], strict=True):
        check(case, reply)
    assert company.most == AT_ONCE
    assert_fired(served, before, await counters(served.pipeline))


@pytest.mark.matrix
async def test_one_at_a_time(served: Served) -> None:
    if served.variant.small_pool:
        pytest.skip("one request alone is never retracted")
    for case in CASES:
        check(case, await run(served.pipeline, request_for(case)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quiet(tiny_checkpoint: str, ar_engine: str) -> AsyncIterator[Pipeline]:
    """A pipeline where nothing but the request itself decides: to be asked one at a time."""
    overrides = options_of(VARIANTS["plain"], tiny_checkpoint)
    loaded = Pipeline.load(
        tiny_checkpoint, device="cpu", compile="off", overrides=overrides, ar_engine=ar_engine
    )
    async with loaded as pipeline:
        yield pipeline


def assert_same(replies: Sequence[Reply], expected: Sequence[Reply]) -> None:
    for reply, other in zip(replies, expected, strict=True):
        assert reply.text_ids == other.text_ids
        np.testing.assert_array_equal(reply.codes, other.codes)


# --- Cached prefixes ------------------------------------------------------------------------------

with_prefixes = pytest.mark.parametrize(
    "served", [("prefixes", "off")], indirect=True, ids=["prefixes-eager"]
)

# The questions begin alike for more than a page.
BEGINNING = "What do you see and hear? Please describe what you see and hear. Please count to "
MEDIA: dict[str, Callable[[int], Message]] = {
    "image": image,
    "audio": lambda seed: audio(seed=seed),
    "video": video,
}


def pages(rows: int) -> int:
    """Rows in the full pages of that many."""
    return rows // PAGE_SIZE * PAGE_SIZE


def short(*messages: Message) -> Request:
    """A greedy request whose reply is a few words, spoken."""
    case = Case(name="", messages=messages, text_max_tokens=12, talker_max_tokens=16)
    return request_for(case)


@with_prefixes
async def test_asking_again_computes_the_last_page_only(served: Served) -> None:
    requests = [request_for(case) for case in CASES]
    first = await Company(served.pipeline, AT_ONCE).run(requests)
    again = await Company(served.pipeline, AT_ONCE).run(requests)
    for case, reply in zip(CASES, again, strict=True):
        check(case, reply)
        usage = reply.finished.usage
        assert usage.cached_tokens == pages(usage.prompt_tokens - 1), case.name
    assert_same(first, again)


@with_prefixes
async def test_a_prefix_of_a_silent_request_serves_one_that_speaks(served: Served) -> None:
    """The Talker hears hidden states of the prompt's rows, which nobody asked for at first."""
    request = short(*ask("Say it.", image(seed=30), audio(seed=30)))
    silent = await run(served.pipeline, with_params(request, modalities=("text",)))
    assert silent.finished.usage.cached_tokens <= PAGE_SIZE  # of the system prompt
    spoken = await run(served.pipeline, request)
    again = await run(served.pipeline, request)
    assert again.finished.usage.cached_tokens == pages(silent.finished.usage.prompt_tokens - 1)
    assert silent.text_ids == spoken.text_ids
    assert_same([spoken], [again])


@with_prefixes
@pytest.mark.parametrize("kind", MEDIA)
async def test_other_media_end_the_shared_prefix_and_other_questions_do_not(
    served: Served, quiet: Pipeline, tiny_checkpoint: str, kind: str
) -> None:
    media, other = MEDIA[kind](10), MEDIA[kind](11)
    requests = [
        short(*ask(BEGINNING + number, part))
        for part, number in ((media, "five"), (other, "five"), (media, "three"))
    ]
    first_row, last_row, shared = shared_rows(tiny_checkpoint, requests[0], requests[2])
    replies = await run_alone(served.pipeline, requests)
    assert_same(replies, await run_alone(quiet, requests))
    _, other_media, other_question = (reply.finished.usage.cached_tokens for reply in replies)
    assert 0 < other_media == pages(first_row)
    assert last_row < other_question == pages(shared)


def shared_rows(checkpoint: str, one: Request, other: Request) -> tuple[int, int, int]:
    """First and last row of the media, and how many rows the two prompts have in common."""
    preprocessor = Preprocessor(checkpoint, MediaLimits())
    ids, others = (preprocessor.prompt(r.messages, r.params)["input_ids"] for r in (one, other))
    media = np.isin(ids, load_config(checkpoint).thinker.media_token_ids).nonzero()[0]
    length = min(len(ids), len(others))
    shared = int((ids[:length] == others[:length]).cumprod().sum())
    return int(media[0]), int(media[-1]), shared


# --- Sampled replies ------------------------------------------------------------------------------


def sampled(case: Case, seed: int) -> Request:
    """The case, sampled by Thinker and Talker with everything a request can ask for."""
    thinker = SamplingParams(
        temperature=0.9,
        top_p=0.9,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        seed=seed,
        max_tokens=40,
    )
    talker = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.05,
        seed=seed,
        max_tokens=40,
    )
    return with_params(request_for(case), sampling=thinker, stage_params={"talker_ar": talker})


SOME = CASES[::2]
SAMPLED = [sampled(case, seed) for seed, case in enumerate(SOME)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sampled_alone(quiet: Pipeline) -> list[Reply]:
    return await run_alone(quiet, SAMPLED)


async def test_a_seed_gives_the_same_ids_and_codes(
    served: Served, sampled_alone: list[Reply]
) -> None:
    greedy = [request_for(case) for case in SOME]
    mixed = [request for pair in zip(SAMPLED, greedy, strict=True) for request in pair]
    silent, spoken = silent_company(served), spoken_company(served)
    before = await counters(served.pipeline)
    company = [*map(unspoken, silent), *map(request_for, spoken)]
    replies = await Company(served.pipeline, AT_ONCE).run([*company, *mixed])
    replies = replies[len(company) :]
    assert_same(replies[::2], sampled_alone)
    for case, reply in zip(SOME, replies[1::2], strict=True):
        check(case, reply)
    assert_fired(served, before, await counters(served.pipeline), once=True)


async def test_other_seeds_give_other_replies(quiet: Pipeline, sampled_alone: list[Reply]) -> None:
    others = await run_alone(quiet, [sampled(CASES[0], seed) for seed in (100, 101)])
    said = [(reply.text_ids, reply.codes.tolist()) for reply in (sampled_alone[0], *others)]
    assert all(one != other for i, one in enumerate(said) for other in said[:i])
