"""Each way a stage graph can be wrong, by the sentence that tells it."""

from __future__ import annotations

from typing import Any

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
