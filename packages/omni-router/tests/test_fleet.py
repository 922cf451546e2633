"""Which worker a request goes to, by what workers can do and how they are."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from omni_router.errors import BadRequestError, NotFoundError, UnavailableError
from omni_router.fleet import CLONING, Fleet
from omni_router.needs import Needs
from omni_router.worker import Ability, Worker, WorkerState


def ability(model: str = "m", **more: Any) -> Ability:
    known = {"inputs": {"text"}, "outputs": {"text"}, "capabilities": (), "voices": ()} | more
    sets = {name: frozenset(value) for name, value in known.items()}
    return Ability(model=model, known_capabilities=frozenset({"speech", CLONING}), **sets)


def worker(name: str, *abilities: Ability, **more: Any) -> Worker:
    made = Worker(name, f"http://{name}", 100)
    made.state = WorkerState.READY
    made.abilities = abilities or (ability(),)
    for field, value in more.items():
        setattr(made, field, value)
    return made


def fleet(*workers: Worker, **more: Any) -> Fleet:
    settings: dict[str, Any] = {
        "policy": "least_load",
        "affinity": ("voice", "session", "prefix"),
        "imbalance": 1.5,
        "slow_start_s": 0.0,
        "random": Random(1),
    }
    made = Fleet(**settings | more)
    for one in workers:
        made.add(one)
    return made


def test_a_model_goes_to_who_serves_it() -> None:
    both = fleet(worker("a", ability("one")), worker("b", ability("two")))
    assert both.choose(Needs(model="two")) is both.get("b")
    assert both.models_differ


def test_a_worker_may_serve_several_models() -> None:
    both = fleet(worker("a", ability("one"), ability("two")), worker("b", ability("two")))
    assert both.choose(Needs(model="one")) is both.get("a")


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="'three' does not exist"):
        fleet(worker("a")).choose(Needs(model="three"))


def test_a_model_whose_workers_are_down_is_unavailable_and_not_unknown() -> None:
    gone = worker("b", ability("two"), state=WorkerState.DOWN)
    with pytest.raises(UnavailableError):
        fleet(worker("a", ability("one")), gone).choose(Needs(model="two"))


def test_without_a_model_any_may_say_so() -> None:
    both = fleet(worker("a", ability("one")), worker("b", ability("two")))
    assert both.choose(Needs()) is not None


@pytest.mark.parametrize(
    ("needs", "able"),
    [
        (Needs(model="m", inputs=frozenset({"image"})), {"inputs": {"text", "image"}}),
        (Needs(model="m", outputs=frozenset({"audio"})), {"outputs": {"text", "audio"}}),
        (Needs(model="m", capability="speech"), {"capabilities": {"speech"}}),
    ],
)
def test_requests_go_to_who_can(needs: Needs, able: dict[str, Any]) -> None:
    mixed = fleet(worker("text"), worker("able", ability(**able)), worker("more"))
    assert mixed.choose(needs) is mixed.get("able")
    with pytest.raises(BadRequestError, match="No worker that serves m has"):
        fleet(worker("text")).choose(needs)


def test_a_capability_that_workers_say_nothing_of_is_theirs_to_refuse() -> None:
    assert fleet(worker("a")).choose(Needs(model="m", capability="realtime")) is not None


@pytest.mark.parametrize(
    "state", [one for one in WorkerState if one not in (WorkerState.READY, WorkerState.SUSPECT)]
)
def test_only_ready_workers_are_chosen(state: WorkerState) -> None:
    with pytest.raises(UnavailableError):
        fleet(worker("a", state=state)).choose(Needs(model="m"))


def test_a_suspect_gets_what_no_ready_one_can_take() -> None:
    both = fleet(worker("a", state=WorkerState.SUSPECT), worker("b", in_flight=50))
    assert both.choose(Needs(model="m")) is both.get("b")
    assert both.choose(Needs(model="m"), [both.get("b")]) is both.get("a")


def test_full_workers_are_waited_for() -> None:
    both = fleet(worker("a", in_flight=100), worker("b", in_flight=100))
    assert both.choose(Needs(model="m")) is None
    both.get("b").in_flight = 99
    assert both.choose(Needs(model="m")) is both.get("b")


def test_load_counts_what_other_routers_sent() -> None:
    both = fleet(worker("a", reported=5), worker("b", in_flight=1))
    assert both.choose(Needs(model="m")) is both.get("b")
    own = worker("a", reported=5, in_flight_then=5, in_flight=0)
    assert own.load == 0


def test_a_session_stays_with_its_worker() -> None:
    many = fleet(*(worker(f"w{n}") for n in range(5)))
    chosen = {many.choose(Needs(model="m", session="s")).name for _ in range(20)}
    assert len(chosen) == 1
    others = {many.choose(Needs(model="m", session=f"s{n}")).name for n in range(50)}
    assert len(others) == 5


def test_the_first_affinity_that_a_request_has_counts() -> None:
    many = fleet(*(worker(f"w{n}") for n in range(5)))
    by_session = many.choose(Needs(model="m", session="s", prefix="p"))
    assert all(
        many.choose(Needs(model="m", session="s", prefix=f"p{n}")) is by_session for n in range(9)
    )


def test_without_affinity_the_policy_decides() -> None:
    many = fleet(*(worker(f"w{n}") for n in range(3)), affinity=())
    counts = Counter(many.choose(Needs(model="m", session="s")).name for _ in range(9))
    assert set(counts.values()) == {3}


def test_a_voice_of_the_checkpoint_binds_nothing() -> None:
    speaks = ability(voices={"anna"}, capabilities={CLONING})
    many = fleet(*(worker(f"w{n}", speaks) for n in range(3)))
    assert len({many.choose(Needs(model="m", voice="anna")).name for _ in range(9)}) == 3


def test_an_uploaded_voice_is_strict_whatever_the_load() -> None:
    speaks = ability(voices={"anna"}, capabilities={CLONING})
    many = fleet(*(worker(f"w{n}", speaks) for n in range(3)))
    home = many.choose(Needs(model="m", voice="mine", session="s"))
    home.in_flight = 99
    assert many.choose(Needs(model="m", voice="mine")) is home
    home.in_flight = 100
    assert many.choose(Needs(model="m", voice="mine")) is None, "it waits for its worker"


def test_a_voice_goes_to_who_has_it() -> None:
    both = fleet(worker("a", ability(voices={"anna"})), worker("b", ability(voices={"bert"})))
    assert {both.choose(Needs(model="m", voice="bert")).name for _ in range(5)} == {"b"}


def test_a_new_worker_gets_little_at_first() -> None:
    clock = [100.0]
    old, new = worker("old"), worker("new", ready_since_s=100.0)
    both = fleet(old, new, slow_start_s=10.0, now=lambda: clock[0])
    old.in_flight = 5
    assert both.choose(Needs(model="m")) is old, "6 of a whole share is less than 1 of a tenth"
    clock[0] = 105.0
    assert both.choose(Needs(model="m")) is new


def test_names_are_told_where_one_is_unknown() -> None:
    with pytest.raises(NotFoundError, match="there are: a, b"):
        fleet(worker("a"), worker("b")).get("c")
