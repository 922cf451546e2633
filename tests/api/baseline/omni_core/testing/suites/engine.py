from __future__ import annotations
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
import pytest
MOST_STEPS: Final = 10000
SEED: Final = 7

class EngineSuite(Suite):

    @pytest.fixture
    def build(self) -> Callable[[], Engine]:
        ...

    @pytest.fixture
    def requests(self) -> Sequence[EngineRequest]:
        ...

    def test_replies_together_are_those_of_each_alone(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_outputs_are_counted_from_zero_and_the_last_says_why(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_max_tokens_is_kept(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_a_seed_decides_the_reply(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_an_abort_frees_everything_at_any_moment(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_an_id_in_use_is_refused(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_chunks_for_nobody_are_ignored(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_an_engine_without_requests_rests(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

class RunnerSuite(EngineSuite):

    @pytest.fixture
    def runner(self) -> ARRunner:
        ...

    @pytest.fixture
    def build(self, runner: ARRunner) -> Callable[..., Engine]:
        ...

    def test_prompts_in_pieces_give_what_they_give_whole(self, build: Callable[..., Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_a_prefix_that_is_cached_changes_nothing(self, build: Callable[..., Engine], requests: Sequence[EngineRequest], runner: ARRunner) -> None:
        ...

    def test_every_sequence_that_is_opened_is_closed_once(self, build: Callable[..., Engine], requests: Sequence[EngineRequest], runner: ARRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        ...
