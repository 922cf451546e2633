"""Which way tensors go along an edge, by where its ends run."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.addresses import COORDINATOR
from omni_core.coordinator.fleet import Fleet
from omni_core.coordinator.plan import Plan, blueprints
from omni_core.relay.transport import CARD_POOL_VARIABLE, edges, shared_cards
from omni_core.specs import Ref, StageConfig

BUILD = Ref("somewhere:build")


@pytest.fixture(autouse=True)
def cards_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CARD_POOL_VARIABLE, "64")


def stage(name: str, *following: str, **fields: Any) -> StageConfig:
    return StageConfig(name=name, factory=BUILD, next=following, **fields)


def pipeline(**changes: dict[str, Any]) -> tuple[StageConfig, ...]:
    """intake and decode on the CPU; thinker, talker and voice on cards 0, 0 and 1."""
    fields: dict[str, dict[str, Any]] = {
        "intake": {"following": ("thinker",)},
        "thinker": {"following": ("decode", "talker"), "gpu": 0},
        "decode": {"following": (), "terminal": "text", "process": "thinker"},
        "talker": {"following": ("voice",), "gpu": 0},
        "voice": {"following": (), "terminal": "audio", "gpu": 1},
    }
    for name, change in changes.items():
        fields[name] |= change
    return tuple(stage(name, *own.pop("following"), **own) for name, own in fields.items())


def ways(stages: tuple[StageConfig, ...], *remote: str) -> dict[tuple[str, str], str]:
    return {
        (edge.source, edge.target): ", ".join(edge.transports)
        for edge in edges(stages, "intake", remote)
    }


def test_each_edge_has_the_way_of_its_ends() -> None:
    assert ways(pipeline()) == {
        (COORDINATOR, "intake"): "shm",
        ("intake", "thinker"): "shm",
        ("thinker", "decode"): "local",
        ("thinker", "talker"): "cuda-ipc",
        ("decode", COORDINATOR): "shm",
        ("talker", "voice"): "shm",
        ("voice", COORDINATOR): "shm",
    }


def test_a_process_of_another_host_is_reached_by_tcp() -> None:
    found = ways(pipeline(), "talker")
    assert found["thinker", "talker"] == found["talker", "voice"] == "tcp"
    assert found["intake", "thinker"] == "shm"


def test_replicas_may_differ() -> None:
    assert ways(pipeline(talker={"gpu": (0, 1), "replicas": 2}))["thinker", "talker"] == (
        "cuda-ipc, shm"
    )
    both = {"process": "one", "replicas": 2}
    assert ways(pipeline(talker=both, voice=both))["talker", "voice"] == "local"


def test_who_shares_a_card_is_told_by_place() -> None:
    both = {"gpu": (0, 1), "replicas": 2}
    assert shared_cards(pipeline(talker=both)) == {
        "thinker": {"thinker": "cuda:0"},
        "talker": {"talker": "cuda:0"},
        "talker.1": {"talker": "cuda:1"},
        "voice": {"voice": "cuda:1"},
    }
    assert set(shared_cards(pipeline(talker=both), remote=("talker.1", "voice"))) == {
        "thinker",
        "talker",
    }


@pytest.mark.parametrize(
    "talker",
    [
        {"gpu": 2},
        {"gpu": None},
        {"process": "thinker"},
        {"env": {"CUDA_VISIBLE_DEVICES": "1"}},  # its cuda:0 is another card
        {"env": {CARD_POOL_VARIABLE: "0"}},
    ],
)
def test_without_a_common_card_nobody_is_told_of_any(talker: dict[str, Any]) -> None:
    stages = pipeline(talker=talker)
    assert shared_cards(stages) == {}
    assert ways(stages)["thinker", "talker"] in ("shm", "local")


def test_it_is_the_operators_to_switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert shared_cards(pipeline())
    monkeypatch.setenv(CARD_POOL_VARIABLE, "0")
    assert shared_cards(pipeline()) == {}
    monkeypatch.delenv(CARD_POOL_VARIABLE)
    assert shared_cards(pipeline()) == {}


def test_processes_are_told_at_their_start() -> None:
    stages = tuple(
        StageConfig(name=one.name, factory=BUILD, next=one.next, gpu=one.gpu) for one in pipeline()
    )
    plan = Plan(model_path="m", stages=stages, entry="intake", dtype="float32")
    fleet = Fleet(stages)
    cards = {"thinker": {"thinker": "cuda:0"}, "talker": {"talker": "cuda:0"}}
    told = blueprints(plan, fleet, remote=("voice",))
    assert [task.setup.cards for task in told.values()] == [cards] * 5
    assert [task.setup.cards for task in blueprints(plan, fleet, ("talker",)).values()] == [{}] * 5
