"""The conformance kit itself: its laws cannot be softened in silence, and each of them can fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_core.relay.cuda_ipc import CudaIpcRelay
from omni_core.relay.cuda_lender import CardPool
from omni_core.relay.lender import PoolLimits
from omni_core.relay.slabs import SharedMemory
from omni_core.scheduler.base import Chunk, ChunksDone, InboxItem, Scheduler, Work
from omni_core.specs import StageContext
from omni_core.testing import echo
from omni_core.testing.cards import FakeCard
from omni_core.testing.clock import VirtualClock
from omni_core.testing.faults import Faulty
from omni_core.testing.suites import (
    EngineSuite,
    PipelineSuite,
    PluginSuite,
    PreprocessorSuite,
    RelayPair,
    RelaySuite,
    RouteSuite,
    RunnerSuite,
    Script,
    StageSuite,
    Suite,
    VocoderSuite,
    VoiceSuite,
    laws_of,
)
from omni_core.testing.suites.refs import refs_in
from omni_core.types import IntArray, Message, RequestParams, TextPart

SUITES: tuple[type[Suite], ...] = (
    *(PluginSuite, PipelineSuite, StageSuite, PreprocessorSuite, VocoderSuite, VoiceSuite),
    *(EngineSuite, RunnerSuite, RelaySuite, RouteSuite),
)
SLOT = 4096


# -- laws stay laws


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_has_laws_with_a_sentence_each(suite: type[Suite]) -> None:
    laws = laws_of(suite.__mro__)
    assert len(laws) > 3
    for law in laws:
        assert getattr(suite, law).__doc__, law
    assert suite.since == "0.1"


def test_a_law_cannot_be_replaced_or_removed() -> None:
    def mine(self: object) -> None: ...

    for law in (mine, None):
        with pytest.raises(TypeError, match=r"Soft\.test_any_chunking_gives.*skip\(reason"):
            type(
                "Soft",
                (VocoderSuite,),
                {"test_any_chunking_gives_the_samples_of_the_whole": law},
            )
    unreasoned = pytest.mark.skip(mine)
    with pytest.raises(TypeError, match="replaces a law"):
        type("Soft", (VoiceSuite,), {"test_there_is_a_sample_rate": unreasoned})


def test_a_law_can_be_left_out_with_a_reason() -> None:
    @pytest.mark.xfail(reason="the codec drops its last frame")
    def mine(self: object) -> None: ...

    suite = type("Honest", (VoiceSuite,), {"test_there_is_a_sample_rate": mine, "test_more": mine})
    again = type("Later", (suite,), {})
    assert "test_more" in laws_of(again.__mro__)


def test_references_are_found_wherever_they_stand() -> None:
    found = {ref.target.partition(":")[2]: place for place, ref in refs_in(echo.PIPELINE)}
    assert set(found) == {
        *("build_intake", "build_writer", "build_voice", "route_writer", "same_model"),
    }
    assert "writer.route_fn" in found["route_writer"]


# -- the echo pipeline keeps them


class TestEchoPipeline(PipelineSuite):
    module = "omni_core.testing.echo"

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return echo.write_checkpoint(tmp_path_factory.mktemp("echo"))


class TestEchoVoices(VoiceSuite):
    @pytest.fixture
    def info(self) -> Any:
        return echo.describe("nowhere")


class TestEchoVocoder(VocoderSuite):
    @pytest.fixture
    def vocoder(self) -> echo.ToneVocoder:
        return echo.ToneVocoder()

    @pytest.fixture
    def codes(self) -> Sequence[IntArray]:
        rng = np.random.default_rng(0)
        return [rng.integers(0, 999, (1, frames)) for frames in (10, 13, 21)]


def context(name: str, directory: Path) -> StageContext:
    [stage] = [stage for stage in echo.PIPELINE.variants["speech"] if stage.name == name]
    return StageContext(
        stage=stage, model_path=echo.write_checkpoint(directory), device="cpu", dtype="float32",
        ar_engine="torch", report=lambda text: None,
    )  # fmt: skip


def asks(text: str) -> Script:
    message = Message(role="user", content=(TextPart(text=text),))
    payload = {"messages": msgspec.msgpack.encode((message,))}
    return lambda name: [Work(name, RequestParams(), payload)]


class TestEchoIntake(PreprocessorSuite):
    @pytest.fixture
    def build(self, tmp_path: Path) -> Callable[[], Scheduler]:
        return lambda: echo.build_intake(context("intake", tmp_path))

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        return [asks("one two"), asks("three big")]

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        return [asks("fail:intake")]


class TestEchoWriter(StageSuite):
    @pytest.fixture
    def build(self, tmp_path: Path) -> Callable[[], Scheduler]:
        return lambda: echo.build_writer(context("writer", tmp_path))

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        def says(*words: str) -> Script:
            return lambda name: [Work(name, RequestParams(), {"words": list(words)})]

        return [says("one", "two"), says("three"), says("fail:writer")]


class TestEchoVoice(StageSuite):
    @pytest.fixture
    def build(self, tmp_path: Path) -> Callable[[], Scheduler]:
        return lambda: echo.build_voice(context("voice", tmp_path))

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        def speaks(frames: int) -> Script:
            def items(name: str) -> list[InboxItem]:
                codes = np.arange(frames, dtype=np.int64)[None]
                chunks = [
                    Chunk(name, "writer", codes[:, at : at + 2]) for at in range(0, frames, 2)
                ]
                return [Work(name, RequestParams(), {}), *chunks, ChunksDone(name, "writer")]

            return items

        return [speaks(9), speaks(4)]


# -- and so do the relays


class TestSharedMemory(RelaySuite):
    @pytest.fixture
    def make_pair(self, tmp_path: Path) -> Callable[[], AbstractContextManager[RelayPair]]:
        limits = PoolLimits(
            pool_bytes=8 * SLOT, slot_bytes=SLOT, warm_bytes=0, ease_s=0.0, patience_s=0.05
        )

        @contextmanager
        def pair() -> Iterator[RelayPair]:
            a, b = (SharedMemory(tmp_path, name, limits) for name in "ab")
            yield RelayPair(lender=a, borrower=b, target="b", room_bytes=8 * SLOT)
            a.close()
            b.close()

        return pair


class TestCards(RelaySuite):
    @pytest.fixture
    def make_pair(
        self, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Callable[[], AbstractContextManager[RelayPair]]:
        pytest.importorskip("torch")
        pool = CardPool(slot_bytes=64, slots=8, direct_tickets=4, direct_bytes=4096)
        memory = tmp_path_factory.mktemp("cards")

        @contextmanager
        def pair() -> Iterator[RelayPair]:
            cards = [FakeCard(memory) for _ in range(2)]
            a, b = (
                CudaIpcRelay(tmp_path, name, [card], pool)
                for name, card in zip("ab", cards, strict=True)
            )
            yield RelayPair(
                lender=a, borrower=b, target="b", room_bytes=8 * 64,
                to_memory=cards[0].tensor, to_numpy=lambda view: view.numpy(),
            )  # fmt: skip
            b.close()
            a.close()

        return pair


# -- a law that is broken fails


def laws_broken_by(suite: type[Suite], **fixtures: Any) -> set[str]:
    """Laws of a suite that raise with these fixtures; parametrised ones with their first case."""
    broken = set()
    for name in laws_of(suite.__mro__):
        law, given = getattr(suite, name), dict(fixtures)
        for mark in getattr(law, "pytestmark", ()):
            if mark.name == "parametrize":
                given[mark.args[0]] = mark.args[1][0]
        try:
            law(suite(), **{key: given[key] for key in law.__annotations__ if key in given})
        except pytest.skip.Exception:
            continue
        except Exception:  # noqa: BLE001 - whatever a law raises, it is broken
            broken.add(name)
        except AssertionError:
            broken.add(name)
    return broken


class Leaky(echo.ToneVocoder):
    """Louder with every reply that has ended."""

    ended = 0

    def push(self, states: Any, codes: Any) -> Any:
        return [sound + np.float32(0.01 * self.ended) for sound in super().push(states, codes)]

    def close(self, state: Any) -> None:
        self.ended += 1


class Blunt(echo.ToneVocoder):
    """Says a little more with every push."""

    def push(self, states: Any, codes: Any) -> Any:
        return [np.append(sound, np.float32(0)) for sound in super().push(states, codes)]


def test_the_laws_of_vocoders_find_what_is_wrong() -> None:
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 999, (1, frames)) for frames in (10, 13, 21)]
    assert laws_broken_by(VocoderSuite, vocoder=echo.ToneVocoder(), codes=codes) == set()
    blunt = laws_broken_by(VocoderSuite, vocoder=Blunt(), codes=codes)
    assert "test_any_chunking_gives_the_samples_of_the_whole" in blunt
    assert "test_replies_in_one_push_sound_as_each_alone" in blunt
    leaky = laws_broken_by(VocoderSuite, vocoder=Leaky(), codes=codes)
    assert "test_a_reply_leaves_nothing_to_the_next" in leaky
    silent = [part * 0 for part in codes]
    mute = laws_broken_by(VocoderSuite, vocoder=echo.ToneVocoder(), codes=silent)
    assert mute == {"test_the_codes_tell_something"}


def test_the_laws_of_voices_find_what_is_wrong() -> None:
    info = echo.describe("nowhere")
    for change, broken in (
        ({"voices": ("Echo", "ECHO")}, "test_names_differ_by_more_than_case"),
        ({"default_voice": "Nobody"}, "test_the_default_voice_is_one_of_them"),
        ({"sample_rate": None}, "test_there_is_a_sample_rate"),
    ):
        assert laws_broken_by(VoiceSuite, info=dataclasses.replace(info, **change)) == {broken}


class Greedy:
    """A stage that answers no abort, and forgets to end every other request."""

    def __init__(self) -> None:
        self._requests = 0

    def run(self, inbox: Any, outbox: Any) -> None:
        while not isinstance(item := inbox.get(), echo.Close):
            if isinstance(item, Work):
                self._requests += 1
                outbox.send(item.request_id, {"number": self._requests})
                outbox.done(item.request_id)
                outbox.done(item.request_id)

    def stats(self) -> dict[str, float]:
        return {"requests": self._requests, "waiting": 0, "running": 1}


def test_the_laws_of_stages_find_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.testing.suites.stage.PATIENCE_S", 0.1)
    monkeypatch.setattr("omni_core.testing.suites.stage.SETTLED_S", 0.1)
    assert laws_broken_by(StageSuite, build=Greedy, scripts=[asks("a"), asks("b")]) == {
        "test_every_request_ends_once_and_nothing_follows",
        "test_requests_together_are_answered_as_each_alone",
        "test_a_request_again_is_answered_alike",
        "test_an_abort_is_answered_and_leaves_nothing",
        "test_it_counts_what_every_stage_counts",
    }


# -- tools


def test_a_virtual_clock_calls_what_falls_due_in_order() -> None:
    clock, told = VirtualClock(), []
    clock.call_later(2.0, lambda: told.append(("b", clock())))
    clock.call_later(1.0, lambda: clock.call_later(0.5, lambda: told.append(("a", clock()))))
    clock.call_later(1.2, lambda: told.append(("never", clock()))).cancel()
    clock.pass_time(1.4)
    assert told == []
    clock.pass_time(1.0)
    assert told == [("a", 1.5), ("b", 2.0)]
    assert clock() == 2.4


def test_a_faulty_thing_works_until_it_does_not() -> None:
    vocoder = Faulty(
        echo.ToneVocoder(), "push", after=1, times=1, error=RuntimeError("the card is gone")
    )
    codes = [np.ones((1, 2), np.int64)]
    assert vocoder.push([None], codes)[0].size == 480
    with pytest.raises(RuntimeError, match="the card is gone"):
        vocoder.push([None], codes)
    assert vocoder.push([None], codes)[0].size == 480
    assert (vocoder.calls, vocoder.sample_rate) == (3, 24_000)
