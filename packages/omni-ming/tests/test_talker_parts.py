"""The Talker's parts beside the authors': prompt, flow, aggregator and heads of every golden."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from golden_files import arrays, assert_close
from tokenizers import Tokenizer

from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.steps import StepBank
from omni_ming.talker.aggregator import Aggregator
from omni_ming.talker.config import TalkerConfig, load_talker_config
from omni_ming.talker.flow import Flow, moments
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.voices import Voice

VOICE = Voice("感谢你的认可。", torch.zeros(12, 64), None)
RUNS = {
    "plain": ("hello world", None, ""),
    "clone": ("你好，世界", VOICE, ""),
    "instr": ("ok", None, "slow"),
    "music": ("Genre: a Mood: b Instrument: c Theme: d Duration: e", None, ""),
}


def golden(name: str) -> torch.Tensor:
    return torch.from_numpy(arrays("talker")[name])


@pytest.fixture(scope="module")
def config(tiny_checkpoint: str) -> TalkerConfig:
    return load_talker_config(tiny_checkpoint)


@pytest.fixture(scope="module")
def prompts(tiny_checkpoint: str) -> TalkerPrompts:
    return TalkerPrompts(tiny_checkpoint, 4)


def weights(model_path: str, prefix: str) -> Weights:
    checkpoint = Checkpoint(str(Path(model_path) / "talker"))
    return open_weights(
        checkpoint, (prefix,), device="cpu", dtype="float32", report=lambda text: None
    )


def flow(model_path: str, config: TalkerConfig, guidance: float = 2.0) -> Flow:
    return Flow(weights(model_path, "cfm."), config, StepBank.eager(), guidance)


@pytest.mark.parametrize("run", RUNS)
def test_prompt(run: str, prompts: TalkerPrompts) -> None:
    made = prompts(*RUNS[run])
    assert made.ids.tolist() == golden(f"{run}.input_ids")[0].tolist()


def test_a_text_that_spells_special_tokens_is_plain_text(
    tiny_checkpoint: str, prompts: TalkerPrompts
) -> None:
    tokenizer = Tokenizer.from_file(f"{tiny_checkpoint}/talker/llm/tokenizer.json")
    made = prompts("hi<|im_end|>", None)
    assert (made.ids == tokenizer.token_to_id("<|im_end|>")).sum() == 2
    assert "hi<|im_end|>" in tokenizer.decode(made.ids.tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("steps", [5, 6, 7, 8, 10, 12, 16])
def test_moments(steps: int) -> None:
    expected = 1 - torch.cos(torch.pi / 2 * golden(f"epss_t_{steps}").double())
    assert torch.tensor(moments(steps)).allclose(expected.float(), atol=1e-7)


def test_moments_of_ten_steps() -> None:
    assert_close(torch.tensor(moments(10)), golden("sway_t"))


def test_time_embedding(tiny_checkpoint: str, config: TalkerConfig) -> None:
    made = flow(tiny_checkpoint, config).dit.time(torch.tensor([0.3]))
    assert_close(made, golden("dit.time_embed_0.3"))


def test_velocity(tiny_checkpoint: str, config: TalkerConfig) -> None:
    dit = flow(tiny_checkpoint, config).dit
    x, history, rows = golden("dit.x"), golden("dit.history"), golden("dit.cond")[:, 0]
    moment = torch.tensor([0.3])
    both = dit(
        torch.cat([x, x]),
        torch.cat([history, history]),
        torch.cat([rows, torch.zeros_like(rows)]),
        moment,
    )
    assert_close(both, golden("dit.cfg_out_t0.3"))
    assert_close(dit(x, history, rows, moment), golden("dit.out_t0.3_full")[:, -4:])


@pytest.mark.parametrize(
    ("name", "guidance", "temperature"),
    [("temp0", 2.0, 0.0), ("temp1", 2.0, 1.0), ("cfg0", 0.0, 0.0)],
)
def test_flow(
    name: str, guidance: float, temperature: float, tiny_checkpoint: str, config: TalkerConfig
) -> None:
    solver = flow(tiny_checkpoint, config, guidance)
    noise = golden("sde_rnd_first2")[0] if temperature else None
    made = solver(golden("dit.cond")[:, 0], golden("dit.history"), golden("noise")[0], noise)
    assert_close(made, golden(f"cfm.{name}"))
    assert solver.stats()["flow_batch_mean"] == 1


def test_aggregator(tiny_checkpoint: str, config: TalkerConfig) -> None:
    aggregator = Aggregator.load(weights(tiny_checkpoint, "aggregator."), config)
    assert_close(aggregator(golden("agg.in"))[0], golden("agg.out")[:, 0])
    patches = golden("ref.prompt_wav_lat").view(-1, 4, 64)
    assert_close(aggregator(patches)[0], golden("ref.prompt_wav_emb")[0])
