"""Each way a stage graph can be wrong, by the sentence that tells it; and many ways at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_core.config import Asked, ConfigFile, resolve
from omni_core.engine.base import TORCH
from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, PipelineConfig, Ref, StageConfig
from omni_core.validate import problems

BUILD = Ref("somewhere:build")


def stage(name: str, **fields: Any) -> StageConfig:
    return StageConfig(name=name, factory=BUILD, **fields)


def chain(**middle: Any) -> list[StageConfig]:
    """a -> b -> c, text at the end; `middle` goes to b."""
    return [
        stage("a", next=("b",)),
        stage("b", **{"next": ("c",), **middle}),
        stage("c", terminal="text"),
    ]


SPEECH = [
    stage("entry", next=("image", "join")),
    stage("image", next=("join",)),
    stage("join", next=("write",), wait_for=("entry", "image"), merge_fn=BUILD),
    stage("write", next=("detok", "talk"), gpu=0, memory_fraction=0.8),
    stage("detok", terminal="text"),
    stage("talk", next=("voice",), stream_to=("voice",), gpu=1, not_on_cards_of=("write",)),
    stage("voice", terminal="audio", gpu=0, memory_fraction=0.2),
]


def sentences(stages: list[StageConfig], entry: str = "a", **options: Any) -> list[str]:
    return [problem.sentence() for problem in problems(stages, entry, **options)]


def test_a_sound_graph_has_no_problems() -> None:
    assert sentences(SPEECH, "entry", produces=("text", "audio")) == []


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            [*chain(), stage("c", terminal="text")],
            "stage 'c': name is used 2 times; rename all but one",
        ),
        (
            chain(next=("cc",)),
            "stage 'b': next names 'cc', which does not exist; did you mean 'c'?",
        ),
        (chain(next=("zzz",)), "stage 'b': next names 'zzz', which does not exist; known: a, b, c"),
        (chain(wait_for=("q",)), "stage 'b': wait_for names 'q', which does not exist; known: a"),
        (
            chain(stream_to=("a",)),
            "stage 'b': stream_to names 'a', to which no payload goes; name it in next as well",
        ),
        (
            chain(project_payload={"a": BUILD}),
            "stage 'b': project_payload names 'a', to which no payload goes; name it in next",
        ),
        (chain(next=()), "stage 'b': next is empty and terminal is not set; name the next stages"),
        (
            chain(wait_for=("a", "c")),
            "stage 'b': merge_fn is not set for the several sources of wait_for; set it to",
        ),
        (chain(merge_fn=BUILD), "stage 'b': merge_fn is set without wait_for; name the sources"),
        (chain(wait_for_fn=BUILD), "stage 'b': wait_for_fn is set without wait_for; name the"),
        (
            chain(tp_size=2),
            "stage 'b': tp_size is 2 but the torch engine has no tensor parallelism; set it to 1",
        ),
        (chain(tp_size=0), "stage 'b': tp_size is 0; it must be at least 1"),
        (
            chain(tp_size=2, process="a"),
            "stage 'b': process is shared with 'a' but each of its 2 ranks needs a process; set",
        ),
        (chain(replicas=0), "stage 'b': replicas is 0; it must be at least 1"),
        (
            chain(replicas=2, process="a"),
            "stage 'b': replicas is 2 but 'a', in the same process, has 1; set the same for both",
        ),
        (
            [*chain(replicas=3, process="p"), stage("d", process="p.2", terminal="audio")],
            "stage 'b': process has a replica 'p.2', and another process is called that; rename",
        ),
        (
            chain(replicas=3, gpu=(0, 1)),
            "stage 'b': gpu names 2 cards but tp_size is 1 and replicas 3; name one card for each",
        ),
        (chain(max_batch=0), "stage 'b': max_batch is 0; it must be at least 1"),
        (chain(max_concurrency=-1), "stage 'b': max_concurrency is -1; it must be at least 1"),
        (chain(max_wait_ms=-1.0), "stage 'b': max_wait_ms is -1.0; it must be 0 or more"),
        (chain(max_wait_ms=float("nan")), "stage 'b': max_wait_ms is nan; it must be 0 or more"),
        (
            chain(memory_fraction=1.5),
            "stage 'b': memory_fraction is 1.5; it is a share of one card, above 0 and at most 1",
        ),
        (chain(gpu=-1), "stage 'b': gpu is -1; cards count from 0"),
        (chain(gpu=(0, 0)), "stage 'b': gpu is (0, 0); cards count from 0, and each is named once"),
        (chain(gpu=(0, 1)), "stage 'b': gpu names 2 cards but tp_size is 1 and replicas"),
        (chain(process="coordinator"), "stage 'b': process is 'coordinator'; use up to 64"),
        (chain(process="../b"), "stage 'b': process is '../b'; use up to 64 letters, digits"),
        (
            chain(next=("c", "a")),
            "stage 'a': next leads back to it (a -> b -> a); remove one of these edges",
        ),
        (chain(next=("b", "c")), "stage 'b': next leads back to it (b -> b); remove one of"),
        (
            [*chain(), stage("lone", terminal="audio")],
            "stage 'lone': name is unreachable from 'a'; add it to the next of a stage, or remove",
        ),
        (
            chain(wait_for=("c",)),
            "stage 'b': wait_for names 'c', from which no route leads here; add 'b' to the next of",
        ),
        (chain(terminal="smell"), "stage 'b': terminal is 'smell'; choose from text, audio"),
        (chain(not_on_cards_of=("bb",)), "stage 'b': not_on_cards_of names 'bb', which does not"),
    ],
)
def test_each_problem_names_the_stage_the_field_and_the_mend(
    stages: list[StageConfig], sentence: str
) -> None:
    found = sentences(stages)
    assert any(problem.startswith(sentence) for problem in found), found


def test_an_unknown_entry_is_suggested() -> None:
    assert sentences(SPEECH, "entri") == [
        "pipeline: entry names 'entri', which does not exist; did you mean 'entry'?"
    ]


def test_a_promised_modality_needs_a_terminal() -> None:
    assert sentences(chain(), produces=("text", "audio")) == [
        "pipeline: terminal 'audio' is promised and reachable at no stage; set terminal='audio' on "
        "the stage that emits it"
    ]
    unreachable = [*chain(), stage("voice", terminal="audio")]
    assert any("'audio' is promised" in s for s in sentences(unreachable, produces=("audio",)))


def test_memory_shares_of_a_card_sum_to_at_most_one() -> None:
    sharing = [
        stage("a", next=("b",), gpu=0, memory_fraction=0.4),
        stage("b", terminal="text", gpu=0, memory_fraction=0.7),
    ]
    assert sentences(sharing) == [
        "stage 'b': memory_fraction does not fit on card 0: 0.4 of 'a' + 0.7 of 'b' = 1.10; lower "
        "them to at most 1 together, or move a stage with --STAGE.gpu N"
    ]
    assert sentences([replace(sharing[0], memory_fraction=0.3), sharing[1]]) == []
    assert sentences([replace(sharing[0], gpu=1), sharing[1]]) == []


def test_replicas_take_their_share_of_a_card_each() -> None:
    one_card = [
        stage("a", next=("b",), gpu=0, memory_fraction=0.4, replicas=2),
        stage("b", terminal="text", gpu=0, memory_fraction=0.3),
    ]
    assert sentences(one_card)[0].startswith(
        "stage 'a': memory_fraction does not fit on card 0: 0.8 of 'a' + 0.3 of 'b' = 1.10; lower "
    )
    assert sentences([replace(one_card[0], gpu=(0, 1)), one_card[1]]) == []


def test_stages_that_are_kept_apart_may_not_share_a_card() -> None:
    moved = [replace(s, gpu=0) if s.name == "talk" else s for s in SPEECH]
    assert sentences(moved, "entry") == [
        "stage 'talk': gpu is 0, the card of 'write', which this variant keeps apart; use another "
        "card with --talk.gpu N, or another variant"
    ]
    on_cpu = [replace(s, gpu=None) for s in moved]
    assert sentences(on_cpu, "entry") == []


def test_stages_of_a_process_share_its_environment() -> None:
    first = stage("a", next=("b",), process="p", env={"X": "1", "Y": "2"})
    second = stage("b", terminal="text", process="p", env={"X": "2", "Y": "2"})
    assert sentences([first, second]) == [
        "stage 'b': env.X is '2' but 'a', in the same process, sets '1'; set one value, or give "
        "the stages processes of their own"
    ]
    assert sentences([first, replace(second, process=None)]) == []


def test_an_engine_with_tensor_parallelism_may_split_a_stage() -> None:
    able = {"torch": replace(TORCH, tensor_parallel=True)}
    assert sentences(chain(tp_size=2, splits=True, gpu=(0, 1)), engines=able) == []
    assert sentences(chain(tp_size=2, gpu=(0, 1)), engines=able) == [
        "stage 'b': tp_size is 2 but the model of this stage cannot be split; set it to 1"
    ]
    assert sentences(chain(tp_size=2, splits=True, gpu=0), engines=able) == [
        "stage 'b': gpu names 1 cards but tp_size is 2 and replicas 1; name one card for each "
        "rank, or one for all replicas"
    ]


DRIVEN = {"ar_engines": ("torch", "sglang")}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"ar_engine": "torch"},
            "stage 'b': ar_engine is torch but the stage is not autoregressive; leave it out",
        ),
        (
            {"ar_engine": "sglang", "ar_engines": ("torch",)},
            "stage 'b': ar_engine is sglang but the stage can only be driven by torch; use "
            "--b.ar_engine torch",
        ),
        (
            {"ar_engine": "vllm", **DRIVEN},
            "stage 'b': ar_engine is vllm but the stage can only be driven by torch or sglang; use "
            "--b.ar_engine torch",
        ),
        (
            {"ar_engines": ("torhc",)},
            "stage 'b': ar_engines names 'torhc', which does not exist; did you mean 'torch'?",
        ),
        (
            {"ar_engine": "sglang", "tp_size": 2, **DRIVEN},
            "stage 'b': tp_size is 2 but the model of this stage cannot be split; set it to 1",
        ),
    ],
)
def test_an_engine_that_cannot_drive_a_stage_is_told(fields: dict[str, Any], sentence: str) -> None:
    assert sentences(chain(**fields)) == [sentence]


def test_a_process_holds_one_engine_of_those_that_own_their_process() -> None:
    def shared(engine: str, other: str) -> list[str]:
        one, two = ({"process": "p", "ar_engine": name, **DRIVEN} for name in (engine, other))
        return sentences([stage("a", next=("b",), **one), stage("b", terminal="text", **two)])

    assert shared("torch", "torch") == shared("torch", "sglang") == []
    assert shared("sglang", "sglang") == [
        "stage 'b': process is shared with 'a', and a process holds one sglang engine; set it to "
        "null, which gives the stage its own"
    ]


def test_each_cycle_is_told_once() -> None:
    two = [
        stage("a", next=("b",)),
        stage("b", next=("c", "d")),
        stage("c", next=("b",)),
        stage("d", next=("e", "f")),
        stage("e", next=("d",)),
        stage("f", terminal="text"),
    ]
    cycles = [s for s in sentences(two) if "leads back" in s]
    assert [c.split("(")[1].split(")")[0] for c in cycles] == ["b -> c -> b", "d -> e -> d"]


TEN_FAULTS = (
    stage("entry", next=("image", "joyn"), process="front"),
    stage("image", next=("join",)),
    stage("join", next=("write",), wait_for=("entry", "image"), merge_fn=BUILD),
    stage("write", next=("talk", "image"), gpu=0, memory_fraction=0.8),
    stage("talk", next=("lost",), gpu=1, not_on_cards_of=("write",)),
    stage("lost", terminal="text"),
    stage("stray", terminal="text", max_batch=0),
)


def test_ten_faults_in_one_config_are_all_told() -> None:
    """Of the plugin, of the file and of the command line; each with stage, field and mend."""
    pipeline = PipelineConfig(
        name="broken",
        architectures=(),
        variants={"speech": TEN_FAULTS},
        default_variant="speech",
        entry="entry",
        describe=lambda path: ModelInfo(context_length=1),
        produces={"speech": ("text", "audio")},
    )
    file = ConfigFile.parse(
        "stages:\n"
        "  talk: {gpu: 0, memory_fraction: 0.6}\n"
        "  write:\n"
        "    tp_size: 2\n"
        "    process: front\n"
        "  lost: {replicas: 0}\n"
        "  imago: {gpu: 1}\n",
        name="omni.yaml",
    )
    asked = Asked(file=file, flags={"device": "cuda"}, overrides={"talk.max_bach": "4"})
    with pytest.raises(ConfigError) as caught:
        resolve(pipeline, asked, cards=2)
    wanted = [
        ("omni.yaml:7: stages.imago", "no stage", "did you mean 'image'?"),
        ("--talk.max_bach: stage 'talk'", "no setting 'max_bach'", "did you mean 'max_batch'?"),
        ("stage 'entry': next", "names 'joyn'", "did you mean 'join'?"),
        ("stage 'write': tp_size", "(omni.yaml:4)", "set it to 1"),
        ("stage 'write': process", "(omni.yaml:5)", "set it to a name"),
        ("stage 'talk': gpu", "(omni.yaml:2)", "use another card"),
        ("stage 'lost': replicas", "(omni.yaml:6)", "it must be at least 1"),
        ("stage 'stray': max_batch", "is 0", "it must be at least 1"),
        ("stage 'stray': name", "unreachable from 'entry'", "add it to the next"),
        ("stage 'join': wait_for", "names 'entry'", "add 'join' to the next of 'entry'"),
        ("stage 'image': next", "image -> join -> write -> image", "remove one of these edges"),
        ("pipeline: terminal", "'audio' is promised", "set terminal='audio'"),
        ("stage 'write': memory_fraction", "1.40", "lower them to at most 1 together"),
    ]
    assert len(caught.value.problems) == len(wanted), caught.value.message
    for start, fault, mend in wanted:
        [told] = [p for p in caught.value.problems if p.startswith(start)]
        head, _, tail = told.rpartition("; ")
        assert fault in head
        assert tail.startswith(mend) or f"; {mend}" in told
