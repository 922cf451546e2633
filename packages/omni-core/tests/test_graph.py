"""Each way a stage graph can be wrong, by the sentence that tells it."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core import graph
from omni_core.specs import Ref, StageConfig

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
    stage("write", next=("detok", "talk")),
    stage("detok", terminal="text"),
    stage("talk", next=("voice",), stream_to=("voice",)),
    stage("voice", terminal="audio"),
]


def test_a_sound_graph_has_no_problems() -> None:
    assert graph.problems(SPEECH, "entry") == []


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            [*chain(), stage("c", terminal="text")],
            "stage 'c': the name is used 2 times; rename all but one",
        ),
        (
            chain(next=("cc",)),
            "stage 'b': next names 'cc', which does not exist; did you mean 'c'?",
        ),
        (chain(next=("zzz",)), "stage 'b': next names 'zzz', which does not exist"),
        (chain(wait_for=("q",)), "stage 'b': wait_for names 'q', which does not exist"),
        (chain(stream_to=("a",)), "stage 'b': stream_to names 'a', which must also be in next"),
        (
            chain(project_payload={"a": BUILD}),
            "stage 'b': project_payload names 'a', which must also be in next",
        ),
        (chain(next=()), "stage 'b': give it next, or terminal if requests end there"),
        (chain(wait_for=("a", "c")), "stage 'b': wait_for has several sources; set merge_fn"),
        (
            chain(merge_fn=BUILD),
            "stage 'b': merge_fn needs wait_for, the sources to gather",
        ),
        (
            chain(wait_for_fn=BUILD),
            "stage 'b': wait_for_fn needs wait_for, the sources to gather",
        ),
        (chain(tp_size=2), "stage 'b': tp_size and replicas above 1 are not supported"),
        (chain(replicas=2), "stage 'b': tp_size and replicas above 1 are not supported"),
        (chain(max_batch=0), "stage 'b': max_batch is 0; it must be at least 1"),
        (chain(max_concurrency=-1), "stage 'b': max_concurrency is -1; it must be at least 1"),
        (chain(max_wait_ms=-1.0), "stage 'b': max_wait_ms is -1.0; it must be 0 or more"),
        (chain(max_wait_ms=float("nan")), "stage 'b': max_wait_ms is nan; it must be 0 or more"),
        (
            chain(memory_fraction=1.5),
            "stage 'b': memory_fraction is 1.5; it is a share of one card, above 0 and at most 1",
        ),
        (chain(gpu=-1), "stage 'b': gpu is -1; cards count from 0"),
        (chain(gpu=(0, -2)), "stage 'b': gpu is (0, -2); cards count from 0"),
        (chain(process="coordinator"), "stage 'b': process is 'coordinator'; use up to 64"),
        (chain(process="../b"), "stage 'b': process is '../b'; use up to 64 letters, digits"),
        (chain(next=("c", "a")), "stage 'b': next leads back to it; break the cycle"),
        (chain(next=("b", "c")), "stage 'b': next leads back to it; break the cycle"),
        (
            [*chain(), stage("lone", terminal="audio")],
            "stage 'lone': unreachable from 'a'; add it to the next of a stage or remove it",
        ),
        (
            chain(wait_for=("c",)),
            "stage 'b': wait_for names 'c', whose next does not contain it",
        ),
    ],
)
def test_each_problem_names_the_stage_the_field_and_the_mend(
    stages: list[StageConfig], sentence: str
) -> None:
    found = graph.problems(stages, "a")
    assert any(problem.startswith(sentence) for problem in found), found


def test_an_unknown_entry_is_suggested() -> None:
    assert graph.problems(SPEECH, "entri") == [
        "entry 'entri' does not exist; did you mean 'entry'?"
    ]


def test_memory_shares_of_a_card_sum_to_at_most_one() -> None:
    sharing = [
        stage("a", next=("b",), gpu=0, memory_fraction=0.7),
        stage("b", terminal="text", gpu=(0, 1), memory_fraction=0.4),
    ]
    assert graph.problems(sharing, "a") == [
        "cuda:0: the memory_fraction of its stages sums to 1.10; lower them to at most 1 together"
    ]


def test_all_problems_come_at_once() -> None:
    wrong = [stage("a", next=("x",), max_batch=0), stage("b", stream_to=("y",))]
    found = graph.problems(wrong, "z")
    places = [problem.split(":")[0] for problem in found]
    assert places[0] == "entry 'z' does not exist"
    assert places[1:] == ["stage 'a'"] * 2 + ["stage 'b'"] * 2


def test_reachable_includes_the_start() -> None:
    assert graph.reachable(SPEECH, "write") == {"write", "detok", "talk", "voice"}
    assert graph.reachable(SPEECH, "voice") == {"voice"}


def test_needed_leaves_out_what_leads_to_no_wanted_terminal() -> None:
    front = {"entry", "image", "join", "write"}
    assert graph.needed(SPEECH, ["text"]) == front | {"detok"}
    assert graph.needed(SPEECH, ["audio"]) == front | {"talk", "voice"}
    assert graph.needed(SPEECH, ["text", "audio"]) == front | {"detok", "talk", "voice"}
    assert graph.needed(SPEECH, []) == set()


def test_served_lists_the_modalities_behind_each_stage() -> None:
    served = graph.served(SPEECH)
    assert served["entry"] == ("audio", "text")
    assert served["talk"] == ("audio",)
    assert served["detok"] == ("text",)
