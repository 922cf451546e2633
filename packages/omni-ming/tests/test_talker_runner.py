"""The Talker on the engine beside the authors' loop: rows, latents and ends of every golden run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from golden_files import arrays, assert_close

from omni_core.engine.base import EngineRequest
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.torch_engine import TorchEngine
from omni_core.engine.torch_engine.config import TorchEngineConfig
from omni_core.specs import StageConfig, StageContext
from omni_core.types import FloatArray, RequestParams, SamplingParams
from omni_ming.talker import runner as talker
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.talker.runner import Noise, SpeechInputs, TalkerRunner
from omni_ming.voices import Voice

RUNS = {
    "plain": ("hello world", ""),
    "clone": ("你好，世界", ""),
    "instr": ("ok", "slow"),
    "music": ("Genre: a Mood: b Instrument: c Theme: d Duration: e", ""),
}
FIRST_STOP = 11


class Given:
    """The golden's noise."""

    def __init__(self) -> None:
        self._left: Iterator[FloatArray] = iter(arrays("talker")["noise"])

    def standard_normal(self, size: tuple[int, ...], dtype: type[np.float32]) -> FloatArray:
        noise = next(self._left)[0]
        assert noise.shape == size
        assert noise.dtype == dtype
        return noise


class Observed(TalkerRunner):
    """Keeps what went in and out of each step."""

    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]
    """{request: (hidden, probabilities, next row) of each step}."""

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        made = super().collect(seqs, hidden, finished)
        for index, seq in enumerate(seqs):
            probs = self.logits(hidden[index]).softmax(-1)
            self.seen.setdefault(seq.request_id, []).append(
                (hidden[index].clone(), probs, self._newest[seq.row].clone())
            )
        return made


@pytest.fixture(scope="module")
def prompts(tiny_checkpoint: str) -> TalkerPrompts:
    return TalkerPrompts(tiny_checkpoint, 4)


@pytest.fixture
def runner(tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> Observed:
    ctx = StageContext(
        stage=StageConfig(name="talker", factory=talker.load_runner),
        model_path=tiny_checkpoint,
        device="cpu",
        dtype="float32",
        ar_engine="torch",
        report=lambda message: None,
    )
    monkeypatch.setattr(talker, "TalkerRunner", Observed)
    made = talker.load_runner(ctx)
    assert isinstance(made, Observed)
    made.seen = {}
    return made


def golden_voice() -> Voice:
    given = arrays("talker")
    latents, speaker = (torch.from_numpy(given[n][0]) for n in ("ref.prompt_wav_lat", "spk.in"))
    return Voice("感谢你的认可。", latents, speaker)


def request(
    prompts: TalkerPrompts,
    run: str,
    noise: Noise,
    *,
    name: str = "",
    temperature: float = 0.0,
    steps: int | None = None,
) -> EngineRequest:
    text, instruction = RUNS[run]
    voice = golden_voice() if run == "clone" else None
    prompt = prompts(text, voice, instruction)
    return EngineRequest(
        request_id=name or run,
        prompt_len=len(prompt.ids),
        inputs=SpeechInputs(prompt=prompt, voice=voice, noise=noise, temperature=temperature),
        params=RequestParams(),
        sampling=SamplingParams(
            temperature=0.0,
            min_tokens=FIRST_STOP,
            max_tokens=steps or len(arrays("talker")[f"{run}.latents"]) + (run != "instr"),
        ),
    )


def speak(engine: TorchEngine, requests: list[EngineRequest]) -> dict[str, torch.Tensor]:
    """Latents (steps, 4, 64) of each."""
    latents: dict[str, list[torch.Tensor]] = {one.request_id: [] for one in requests}
    for one in requests:
        engine.add(one)
    with engine.session():
        while engine.runnable():
            for output in engine.step():
                latents[output.request_id].append(output.data.clone())
    return {name: torch.stack(made) for name, made in latents.items()}


@pytest.mark.parametrize("run", RUNS)
def test_a_run(run: str, runner: Observed, prompts: TalkerPrompts) -> None:
    """Stops by the rule after as many patches as the authors', but for `instr`, which they cut."""
    engine = TorchEngine(runner)
    made = speak(engine, [request(prompts, run, Given())])[run]
    golden = {name: arrays("talker")[f"{run}.{name}"] for name in ("latents", "hidden")}
    assert_close(made, golden["latents"])
    hidden, probs, rows = (torch.stack(kind) for kind in zip(*runner.seen[run], strict=True))
    assert_close(hidden, golden["hidden"][:, 0])
    assert_close(probs, arrays("talker")[f"{run}.stop_probs"])
    assert_close(rows, arrays("talker")[f"{run}.next_embeds"][:, 0])


def test_the_prompt_of_a_voice(runner: Observed, prompts: TalkerPrompts) -> None:
    made = runner._prompt(request(prompts, "clone", Given()).inputs)
    assert_close(made, arrays("talker")["clone.inputs_embeds"][0])


def seeded(
    prompts: TalkerPrompts, number: int, run: str, temperature: float = 0.0
) -> EngineRequest:
    return request(
        prompts,
        run,
        np.random.default_rng([7, number]),
        name=f"{run} {number}",
        temperature=temperature,
        steps=30 + 3 * number,
    )


@pytest.mark.parametrize("chunk", [13, 512])
def test_together_as_alone(chunk: int, runner: Observed, prompts: TalkerPrompts) -> None:
    """Eight at once, some with noise in each step: what each draws is its own."""
    kinds = [(n, run, float(n % 3 == 2)) for n, run in enumerate([*RUNS, *RUNS])]
    alone = {}
    for kind in kinds:
        alone |= speak(TorchEngine(runner), [seeded(prompts, *kind)])
    before = runner.flow.stats()
    engine = TorchEngine(runner, TorchEngineConfig(prefill_chunk=chunk))
    made = speak(engine, [seeded(prompts, *kind) for kind in kinds])
    for name, latents in alone.items():
        assert_close(made[name], latents)
    after = runner.flow.stats()
    patches = after["flow_patches"] - before["flow_patches"]
    assert patches == sum(map(len, alone.values()))
    assert patches / (after["flow_batches"] - before["flow_batches"]) > 2


def test_through_retractions(runner: Observed, prompts: TalkerPrompts) -> None:
    kinds = [(n, run) for n, run in enumerate([*RUNS, *RUNS])]
    alone = {}
    for kind in kinds:
        alone |= speak(TorchEngine(runner), [seeded(prompts, *kind)])
    kv = runner.kv
    row_bytes = 2 * kv.layers * kv.kv_heads * kv.head_dim * 4
    engine = TorchEngine(runner, TorchEngineConfig(kv_budget_bytes=400 * row_bytes))
    made = speak(engine, [seeded(prompts, *kind) for kind in kinds])
    assert engine.stats().retractions > 0
    for name, latents in alone.items():
        assert_close(made[name], latents)
