"""Reading tensors by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_core.errors import ConfigError
from omni_qwen3.weights import Checkpoint, open_weights, torch_dtype


@pytest.fixture
def single_file(tmp_path: Path) -> str:
    tensors = {
        "a.table": torch.arange(12.0).view(6, 2),
        **{
            f"a.experts.{e}.{part}_proj.weight": torch.full(shape, 10.0 * e + i)
            for e in range(3)
            for i, (part, shape) in enumerate(
                {"gate": (4, 2), "up": (4, 2), "down": (2, 4)}.items()
            )
        },
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return str(tmp_path)


def test_reads_a_tensor_of_a_sharded_checkpoint(tiny_checkpoint: str) -> None:
    name = "talker.code_predictor.model.norm.weight"
    files = [load_file(path) for path in Path(tiny_checkpoint).glob("*.safetensors")]
    (stored,) = [tensors[name] for tensors in files if name in tensors]
    with Checkpoint(tiny_checkpoint) as checkpoint:
        assert torch.equal(checkpoint.tensor(name), stored)


def test_reads_rows_in_the_order_asked(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint:
        rows = checkpoint.rows("a.table", [4, 0, 4])
    assert rows.tolist() == [[8.0, 9.0], [0.0, 1.0], [8.0, 9.0]]


def test_stacks_experts_in_the_dtype_asked(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint:
        weights = open_weights(
            checkpoint, ["a."], device="cpu", dtype="bfloat16", report=lambda message: None
        )
        gate_up, down = weights.experts("a.experts.", 3, hidden=2, inner=4)
    assert gate_up.dtype == down.dtype == torch.bfloat16
    assert gate_up.shape == (3, 8, 2)
    assert down.shape == (3, 2, 4)
    assert gate_up[2].mean(dim=1).tolist() == [20.0] * 4 + [21.0] * 4
    assert down[1].unique().tolist() == [12.0]


def test_reports_progress_to_the_end(single_file: str) -> None:
    said: list[str] = []
    with Checkpoint(single_file) as checkpoint:
        weights = open_weights(
            checkpoint, ["a."], device="cpu", dtype="float32", report=said.append
        )
        weights.tensor("a.table", (6, 2))
        weights.experts("a.experts.", 3, hidden=2, inner=4)
        weights.finish()
    assert said[-1] == "loading weights 10/10"
    assert len(said) > 1


def test_a_missing_tensor_is_named_with_its_directory_and_prefix(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint, pytest.raises(ConfigError) as raised:
        checkpoint.tensor("a.experts.7.gate_proj.weight")
    message = str(raised.value)
    assert "'a.experts.7.gate_proj.weight'" in message
    assert single_file in message
    assert "9 tensors under 'a.experts'" in message


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither model\.safetensors\.index\.json nor"):
        Checkpoint(str(tmp_path))


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    index = '{"weight_map": {"x": "model-00001-of-00002.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with Checkpoint(str(tmp_path)) as checkpoint, pytest.raises(ConfigError, match="00001-of"):
        checkpoint.tensor("x")


@pytest.mark.parametrize("kept_bytes", [4, 100, -8])
def test_a_file_that_is_cut_short_is_named(single_file: str, kept_bytes: int) -> None:
    path = Path(single_file) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ConfigError, match=r"model\.safetensors .*download it again"):
        Checkpoint(single_file)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="'tensor' is no torch dtype"):
        torch_dtype("tensor")
