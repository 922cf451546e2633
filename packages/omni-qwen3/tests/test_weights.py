"""Reading tensors by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_core.checkpoint.weights import SINGLE_FILE, Checkpoint, Weights, open_weights, torch_dtype
from omni_core.errors import ConfigError


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


def opened(checkpoint: Checkpoint, prefixes: Sequence[str]) -> Weights:
    return open_weights(
        checkpoint, prefixes, device="cpu", dtype="float32", report=lambda message: None
    )


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
    counted = [re.fullmatch(r"loading weights (\d+)/336 bytes", line) for line in said]
    done = [int(found[1]) for found in counted if found]
    assert done == sorted(done)
    assert done[-1] == 336
    assert len(done) == len(said) == 10


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


def test_shards_that_are_gone_are_all_named_before_anything_is_read(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    files = sorted(path.name for path in Path(tiny_checkpoint).glob("*.safetensors"))
    index = Path(tiny_checkpoint, "model.safetensors.index.json").read_text()
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with Checkpoint(str(tmp_path)) as checkpoint, pytest.raises(ConfigError) as raised:
        opened(checkpoint, [""])
    assert ", ".join(files[:5]) in raised.value.message
    assert "finish the download" in raised.value.message


def test_a_shard_without_the_tensor_that_the_index_promises_is_named(single_file: str) -> None:
    index = {"weight_map": {"b.other": "model.safetensors"}}
    Path(single_file, "model.safetensors.index.json").write_text(json.dumps(index))
    with Checkpoint(single_file) as checkpoint, pytest.raises(ConfigError) as raised:
        opened(checkpoint, ["b."]).tensor("b.other", (1,))
    assert "model.safetensors does not hold 'b.other'" in raised.value.message
    assert "download all of them again" in raised.value.message


def test_another_shape_is_named_with_the_expected_one(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint, pytest.raises(ConfigError) as raised:
        opened(checkpoint, ["a."]).tensor("a.table", (6, 3))
    message = raised.value.message
    assert (
        "model.safetensors: 'a.table' has the shape (6, 2), config.json makes it (6, 3)" in message
    )


def test_a_quantised_tensor_is_named_with_its_type(tmp_path: Path) -> None:
    save_file({"a.w": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with Checkpoint(str(tmp_path)) as checkpoint, pytest.raises(ConfigError) as raised:
        opened(checkpoint, ["a."]).tensor("a.w", (4,))
    assert "tensor 'a.w' is stored as I8" in raised.value.message
    assert "quantised" in raised.value.message


def test_a_part_that_is_not_there_at_all_is_named(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint, pytest.raises(ConfigError, match="'talker"):
        opened(checkpoint, ["talker."])


def test_what_nobody_asked_for_is_refused_in_the_end(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint:
        weights = opened(checkpoint, ["a."])
        weights.experts("a.experts.", 3, hidden=2, inner=4)
        with pytest.raises(ConfigError, match=r"no place for a\.table"):
            weights.finish()


def test_nothing_is_loaded_twice(single_file: str) -> None:
    with Checkpoint(single_file) as checkpoint:
        weights = opened(checkpoint, ["a."])
        weights.tensor("a.table", (6, 2))
        with pytest.raises(ValueError, match="loaded twice"):
            weights.tensor("a.table", (6, 2))


@pytest.mark.parametrize("content", [b"\x08\0\0\0\0\0\0\0[1, 2, 3", b"\xff" * 64])
def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors is cut short or damaged"):
        Checkpoint(str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 4)])
def test_reads_what_safetensors_wrote(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    stored = torch.randn(shape).to(dtype)
    save_file({"before": torch.ones(5, dtype=torch.uint8), "x": stored}, tmp_path / SINGLE_FILE)
    with Checkpoint(str(tmp_path)) as checkpoint:
        assert torch.equal(checkpoint.tensor("x"), stored)


STAGE_LOADERS = {
    "thinker": "from omni_qwen3.thinker import load_runner as load",
    "talker_ar": "from omni_qwen3.talker import load_runner as load",
}
PREFIXES = {
    "thinker": ("thinker.model.", "thinker.lm_head."),
    "talker_ar": ("talker.",),
}
LOAD_ALONE = """
import json, os, sys
from omni_core.specs import Ref, StageConfig, StageContext
IMPORT
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
def read_bytes():
    lines = open("/proc/self/io").read().split()
    return int(lines[lines.index("rchar:") + 1])
ctx = StageContext(stage=StageConfig(name="s", factory=Ref("a:b")), model_path=sys.argv[1],
                   device="cpu", dtype=sys.argv[2], ar_engine="torch", report=lambda text: None)
load(ctx)  # imports what is imported late
opened.clear()
before = read_bytes()
model = load(ctx)
print(json.dumps({"read": read_bytes() - before, "opened": opened}))
"""


@pytest.mark.parametrize("stage", STAGE_LOADERS)
def test_a_stage_opens_only_its_files_and_reads_only_its_bytes(
    stage: str, tiny_checkpoint: str
) -> None:
    """In a process of its own, by the kernel's count of bytes read."""
    script = LOAD_ALONE.replace("IMPORT", STAGE_LOADERS[stage])
    command = [sys.executable, "-c", script, tiny_checkpoint, "float32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    with Checkpoint(tiny_checkpoint) as checkpoint:
        names = [name for prefix in PREFIXES[stage] for name in checkpoint.names(prefix)]
        if stage == "talker_ar":
            names.append("thinker.model.embed_tokens.weight")  # three rows of it
        files = {checkpoint.file(name) for name in names}
        own_bytes = sum(checkpoint.tensor(name).nbytes for name in names)
        headers = sum(int.from_bytes(file.path.read_bytes()[:8], "little") for file in files)
        small = sum(path.stat().st_size for path in Path(tiny_checkpoint).glob("*.json"))
    opened_shards = {path for path in seen["opened"] if path.endswith(".safetensors")}
    assert opened_shards == {str(file.path) for file in files}
    everything = sum(path.stat().st_size for path in Path(tiny_checkpoint).glob("*.safetensors"))
    assert own_bytes < 0.9 * everything, "else the test could not tell"
    assert own_bytes * 0.9 < seen["read"] <= own_bytes + headers + 3 * small


PEAK = """
import sys, torch
from omni_core.checkpoint.weights import Checkpoint, open_weights
def peak():
    words = open("/proc/self/status").read().split()
    return int(words[words.index("VmHWM:") + 1]) * 1024
with Checkpoint(sys.argv[1]) as checkpoint:
    weights = open_weights(checkpoint, ["mine."], device="cpu", dtype=sys.argv[2],
                           report=lambda text: None)
    torch.ones(4).to(torch.bfloat16)
    before = peak()
    loaded = weights.experts("mine.", 64, hidden=512, inner=512)
    weights.finish()
print(peak() - before)
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loading_takes_the_memory_of_the_stages_own_weights(tmp_path: Path, dtype: str) -> None:
    """Of a file of which the stage owns a third, experts to stack included."""
    mine = {
        f"mine.{e}.{part}_proj.weight": torch.zeros(512, 512, dtype=torch.bfloat16)
        for e in range(64)
        for part in ("gate", "up", "down")
    }
    others = {f"others.{i}": torch.zeros(1024, 1024, dtype=torch.bfloat16) for i in range(96)}
    save_file({**others, **mine}, tmp_path / SINGLE_FILE)
    command = [sys.executable, "-c", PEAK, str(tmp_path), dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    own = sum(t.numel() for t in mine.values()) * torch_dtype(dtype).itemsize
    assert own <= int(done.stdout) <= 1.1 * own + 8 * 1024 * 1024


@pytest.mark.parametrize("kept_bytes", [4, 100, -8])
def test_a_file_that_is_cut_short_is_named(single_file: str, kept_bytes: int) -> None:
    path = Path(single_file) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ConfigError, match=r"model\.safetensors .*download it again"):
        Checkpoint(single_file)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="'tensor' is no torch dtype"):
        torch_dtype("tensor")
