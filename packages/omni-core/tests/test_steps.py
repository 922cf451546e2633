"""Steps on a CPU: what is swapped in, when, and what keeps it out."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from omni_core.errors import StageError
from omni_core.specs import Ref, StageConfig, StageContext
from omni_core.steps import StepBank, build_bank
from omni_core.steps.aoti import Libraries
from omni_core.steps.base import Spec, Tensors
from omni_core.steps.check import difference
from omni_core.steps.compiled import CHECKED_CALLS, HOT_EAGER_S, CompiledStep, Library
from omni_core.steps.describe import TensorDoc, describe
from omni_core.steps.maker import LibraryMaker
from omni_core.steps.request import Request
from omni_core.steps.waiting import reported

DYNAMIC = ({0: "batch"}, {0: "slots"})


@dataclass(frozen=True, slots=True)
class Scale:
    weight: torch.Tensor

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        x, pool = tensors
        pool[0] = 7.0
        return (x * self.weight, x.argmax(dim=-1))


@dataclass(slots=True)
class Fake:
    """A maker whose libraries are given, on demand, by the test."""

    asked: list[str] = field(default_factory=list)
    done: Callable[[Library], None] = lambda library: None

    def find(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[Library], None]
    ) -> None:
        self.asked.append("find")
        self.done = done

    def make(
        self, spec: Spec, call: tuple[TensorDoc, ...], done: Callable[[Library], None]
    ) -> None:
        self.asked.append("make")
        self.done = done

    make_now = make


@dataclass(slots=True)
class Slow:
    """A clock that every call of the step advances by a second."""

    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += 0.5
        return self.now_s


def call(batch: int = 2) -> Tensors:
    return torch.arange(3.0 * batch).view(batch, 3), torch.zeros(4, 3)


def scaled() -> tuple[CompiledStep, Spec, Fake]:
    spec = Spec(name="scale", program=Scale(torch.tensor(2.0)), dynamic=DYNAMIC, pools=1)
    maker = Fake()
    return CompiledStep(spec, maker, Slow()), spec, maker


def right(tensors: Tensors) -> Tensors:
    tensors[1][0] = 7.0
    return tensors[0] * 2.0, tensors[0].argmax(dim=-1)


def test_a_short_run_looks_for_a_library_and_compiles_none() -> None:
    step, spec, maker = scaled()
    for _ in range(2):
        step(*call())
    assert maker.asked == ["find"]
    assert (spec.counts.eager, spec.counts.compiled) == (2, 0)


def test_a_hot_step_is_compiled_once_and_swapped_in_after_its_checks() -> None:
    step, spec, maker = scaled()
    for _ in range(20):
        step(*call())
    assert maker.asked == ["find", "make"]
    assert int(HOT_EAGER_S) + 1 < 20
    maker.done(right)
    for _ in range(CHECKED_CALLS):
        assert not step.swapped
        assert torch.equal(step(*call())[0], call()[0] * 2)
    assert step.swapped
    assert spec.counts.compiled == 0
    step(*call())
    step(*call(batch=3))
    assert spec.counts.compiled == 2


def test_one_row_is_checked_by_itself() -> None:
    step, spec, maker = scaled()
    step(*call())
    maker.done(right)
    for _ in range(CHECKED_CALLS):
        step(*call())
    eager = spec.counts.eager
    step(*call(batch=1))
    assert (spec.counts.eager, spec.counts.compiled) == (eager + 1, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: (t[0] * 2.01, t[0].argmax(dim=-1)),
        lambda t: (t[0] * 2, t[0].argmin(dim=-1)),
        lambda t: (t[0] * 2,),
        lambda t: (t[0][:1] * 2, t[0].argmax(dim=-1)),
        lambda t: (t[0] / 0, t[0].argmax(dim=-1)),
    ],
)
def test_a_wrong_library_is_refused_with_one_warning(
    wrong: Callable[[Tensors], Tensors], caplog: pytest.LogCaptureFixture
) -> None:
    step, spec, maker = scaled()
    step(*call())
    maker.done(wrong)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert torch.equal(step(*call())[0], call()[0] * 2)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "stays eager" in caplog.text
    assert (spec.counts.compiled, maker.asked) == (0, ["find"])


def test_a_library_that_raises_later_costs_no_call(caplog: pytest.LogCaptureFixture) -> None:
    step, spec, maker = scaled()
    step(*call())
    broken = False

    def library(tensors: Tensors) -> Tensors:
        if broken:
            raise RuntimeError("it broke")
        return right(tensors)

    maker.done(library)
    for _ in range(CHECKED_CALLS + 1):
        step(*call())
    assert spec.counts.compiled == 1
    broken = True
    assert torch.equal(step(*call())[0], call()[0] * 2)
    assert "it broke" in caplog.text
    assert not step.swapped


def test_while_checked_the_program_has_the_last_word_on_the_pools(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step, _, maker = scaled()
    x, pool = call()
    step(x, pool)

    def library(tensors: Tensors) -> Tensors:
        results = right(tensors)
        tensors[1][0] = -1.0
        return results

    maker.done(library)
    step(x, pool)
    assert (pool[0] == 7.0).all()
    assert "result 2: off by 8" in caplog.text


@pytest.mark.parametrize(
    "strange",
    [
        (torch.arange(6.0).view(3, 2).t(), torch.zeros(4, 3)),
        (torch.ones(2, 3, dtype=torch.float64), torch.zeros(4, 3)),
        (torch.ones(2, 5), torch.zeros(4, 5)),
    ],
    ids=["strides", "dtype", "a size that was to stay"],
)
def test_calls_a_library_is_not_for_stay_eager(strange: Tensors) -> None:
    step, spec, maker = scaled()
    step(*call())
    maker.done(right)
    for _ in range(CHECKED_CALLS):
        step(*call())
    eager = spec.counts.eager
    step(*strange)
    assert (spec.counts.eager, spec.counts.compiled) == (eager + 1, 0)


def test_results_may_differ_by_rounding_only() -> None:
    one = torch.tensor([1.0, 1000.0])
    assert difference([one + 0.01], [one]) is None
    assert "off by" in str(difference([one + 5.0], [one]))
    assert difference([torch.tensor([1])], [torch.tensor([1])]) is None
    assert "integers" in str(difference([torch.tensor([1])], [torch.tensor([2])]))
    nan = torch.tensor([1.0, float("nan")])
    assert difference([nan], [nan]) is None
    assert difference([torch.ones(2)], [nan]) is not None
    assert difference([nan], [torch.ones(2)]) is not None


def test_a_program_is_data_without_weights() -> None:
    @dataclass(frozen=True)
    class Local:
        held: object

    shared = torch.ones(2, 3).t()
    doc, weights = describe(Scale(shared))
    assert [weight is shared for weight in weights] == [True]
    assert doc.weights[0].stride == (1, 3)
    assert len(describe(Local([shared, shared]))[1]) == 1
    with pytest.raises(StageError, match=r"Local.held\[1\] is a set"):
        describe(Local([1, {2}]))


def test_the_key_of_a_library_follows_what_it_is_made_of() -> None:
    def key(weight: torch.Tensor, batch: int = 2, width: int = 3) -> str:
        tensors = (torch.zeros(batch, width), torch.zeros(4, width))
        return Request.of(
            describe(Scale(weight))[0], tuple(map(TensorDoc.of, tensors)), DYNAMIC
        ).key()

    assert key(torch.ones(3)) == key(torch.zeros(3), batch=9)
    others = {key(torch.ones(3)), key(torch.ones(1)), key(torch.ones(3), width=1)}
    assert len(others | {key(torch.ones(3, dtype=torch.float16))}) == 4


class Failing(Libraries):
    def make(self, request: Request) -> Path:
        raise StageError("exit status 1: no room")


def test_a_failing_compiler_is_asked_once_and_costs_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bank = StepBank(maker=LibraryMaker(Failing(tmp_path)), waits=True)
    with caplog.at_level(logging.WARNING):
        for name in ("one", "two"):
            step = bank.step(
                name, Scale(torch.tensor(2.0)), dynamic=DYNAMIC, pools=1, examples=lambda: [call()]
            )
            assert torch.equal(step(*call())[0], call()[0] * 2)
    [record] = caplog.records
    assert "no room" in record.message
    assert bank.stats()["step_calls_eager"] == 2


def test_off_is_eager_and_background_is_not_on_the_way() -> None:
    def bank(mode: str) -> StepBank:
        stage = StageConfig(name="talk", factory=Ref("a:b"))
        return build_bank(
            StageContext(
                stage=stage,
                model_path="",
                device="cpu",
                dtype="float32",
                ar_engine="torch",
                compile=mode,
                report=lambda _: None,
            )
        )

    off = bank("off")
    step = off.step("scale", Scale(torch.tensor(2.0)), dynamic=DYNAMIC, pools=1)
    step(*call())
    assert off.stats()["step_calls_eager"] == 1
    with pytest.raises(ValueError, match="registered already"):
        off.step("scale", Scale(torch.tensor(2.0)), dynamic=DYNAMIC, pools=1)
    assert bank("background").stats()["step_calls_eager"] == 0


def test_serving_processes_import_no_compiler() -> None:
    code = (
        "import sys, omni_core.steps, omni_core.engine.torch_engine;"
        "print(not {'torch._inductor', 'torch._dynamo'}.isdisjoint(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_no_library_is_taken_from_a_directory_that_others_can_write(
    tmp_path: Path, mode: int
) -> None:
    _, spec, _ = scaled()
    program, _ = describe(spec.program)
    request = Request.of(program, [TensorDoc.of(t) for t in call()], spec.dynamic)
    libraries = Libraries(tmp_path)
    (tmp_path / f"{request.key()}.so").write_bytes(b"code")
    assert libraries.find(request) is not None
    tmp_path.chmod(mode)
    with pytest.raises(StageError, match=r"others can write to .* OMNI_STEP_CACHE"):
        libraries.find(request)
    with pytest.raises(StageError, match="others can write"):
        libraries.make(request)


def test_what_takes_long_is_heard_of_again_and_again() -> None:
    heard: list[str] = []
    twice = threading.Event()

    def report(text: str) -> None:
        heard.append(text)
        if len(heard) > 2:
            twice.set()

    with reported(report, "compiling step a", every_s=0.01):
        assert twice.wait(10)
    assert heard[0] == "compiling step a"
    assert all(re.fullmatch(r"compiling step a, for \d+ s now", text) for text in heard[1:])
    assert "news" not in {thread.name for thread in threading.enumerate()}
