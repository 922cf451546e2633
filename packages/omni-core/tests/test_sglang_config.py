"""What the engine on SGLang is told by a stage's options, and the checkpoint it is given. Needs no
SGLang."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from omni_core.engine.base import KVSpec
from omni_core.engine.sglang_engine.config import (
    PAGE_SIZE,
    SglangEngineConfig,
    engine_config,
    pages_for,
)
from omni_core.engine.sglang_engine.model import SglangRunner
from omni_core.engine.sglang_engine.view import INDEX_FILE, SINGLE_FILE, part_of
from omni_core.errors import ConfigError
from omni_core.specs import StageConfig, StageContext

KV = KVSpec(layers=2, kv_heads=2, head_dim=8, max_len=100)
PAGE_BYTES = 2 * 2 * 2 * 8 * 4 * PAGE_SIZE


def context(
    *, device: str = "cpu", memory_fraction: float | None = None, **options: Any
) -> StageContext:
    return StageContext(
        stage=StageConfig(
            name="talk", factory=print, options=options, memory_fraction=memory_fraction
        ),
        model_path="m",
        device=device,
        dtype="float32",
        ar_engine="sglang",
        report=lambda message: None,
    )


def runner(*, feedback: bool = False, prefix_cache: bool = True) -> SglangRunner:
    return cast(SglangRunner, SimpleNamespace(feedback=feedback, prefix_cache=prefix_cache))


def test_options_have_the_names_they_have_for_the_other_engine() -> None:
    found = engine_config(
        context(
            max_running="8",
            max_batch_tokens="64",
            prefill_chunk="32",
            kv_budget_bytes="4096",
            prefix_cache="false",
            lookahead=True,
        ),
        runner(),
    )
    assert found == SglangEngineConfig(
        max_running=8,
        max_batch_tokens=64,
        prefill_chunk=32,
        kv_budget_bytes=4096,
        prefix_cache=False,
        looks_ahead=True,
    )


@pytest.mark.parametrize(
    ("options", "model", "reason"),
    [
        ({"lookahead": "on"}, {"feedback": True}, "the next row from what it computes"),
        ({"lookahead": "soon"}, {}, "lookahead must be auto, on or off"),
        ({"coalesce_ms": 5}, {}, "holds no prompt for company"),
        ({"prefix_cache": True}, {"prefix_cache": False}, "cannot be shared between requests"),
        ({"max_running": 0}, {}, "max_running must be at least 1"),
        ({"prefill_chunk": "many"}, {}, "prefill_chunk must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(
    options: dict[str, Any], model: dict[str, bool], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        engine_config(context(**options), runner(**model))


def test_a_card_gives_the_rest_of_its_share_and_a_cpu_a_fixed_budget() -> None:
    on_card = engine_config(context(device="cuda:1", memory_fraction=0.4), runner())
    assert (on_card.kv_budget_bytes, on_card.memory_fraction) == (None, 0.4)
    assert on_card.kv_tokens(KV, 4) is None
    assert engine_config(context(), runner()).kv_budget_bytes is not None


def test_the_pool_is_whole_pages_within_the_budget_and_no_larger_than_it_can_be_used() -> None:
    def tokens(budget: int) -> int | None:
        return SglangEngineConfig(max_running=3, kv_budget_bytes=budget).kv_tokens(KV, 4)

    assert tokens(5 * PAGE_BYTES + 1) == 5 * PAGE_SIZE
    assert tokens(1000 * PAGE_BYTES) == 3 * pages_for(KV.max_len) * PAGE_SIZE
    with pytest.raises(ConfigError, match="less than a page"):
        tokens(PAGE_BYTES - 1)


def test_a_rank_holds_only_its_own_heads() -> None:
    def tokens(ranks: int) -> int | None:
        config = SglangEngineConfig(max_running=9, kv_budget_bytes=5 * PAGE_BYTES)
        return config.kv_tokens(KV, 4, ranks=ranks)

    heads = KV.kv_heads
    assert [tokens(ranks) for ranks in (1, heads, 2 * heads)] == [80, 160, 160]


def test_chunks_are_whole_pages() -> None:
    chunks = [SglangEngineConfig(prefill_chunk=rows).chunk_rows for rows in (1, 16, 40)]
    assert chunks == [16, 16, 32]


def test_upstream_finds_the_files_of_one_part(tmp_path: Path) -> None:
    mapping = {"a.w": "1.safetensors", "a.v": "2.safetensors", "b.w": "3.safetensors"}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": mapping}))
    for file in mapping.values():
        (tmp_path / file).write_bytes(b"")
    with part_of(str(tmp_path), {"model_type": "x"}, ("a.",)) as name:
        part = Path(name)
        assert json.loads((part / "config.json").read_text()) == {"model_type": "x"}
        kept = json.loads((part / INDEX_FILE).read_text())["weight_map"]
        assert kept == {"a.w": "1.safetensors", "a.v": "2.safetensors"}
        files = {file.name for file in part.iterdir()}
        assert files == {"config.json", INDEX_FILE, "1.safetensors", "2.safetensors"}
    assert not part.exists()


def test_a_part_of_a_single_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(b"all")
    with part_of(str(tmp_path), {}, ("a.",)) as part:
        assert (Path(part) / SINGLE_FILE).read_bytes() == b"all"


def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    mapping = {"a.w": "1.safetensors"}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": mapping}))
    with pytest.raises(ConfigError, match="no tensors under"), part_of(str(tmp_path), {}, ("b.",)):
        pass
    with (
        pytest.raises(ConfigError, match="lacks 1"),
        part_of(str(tmp_path), {}, ("a.",)),
    ):
        pass
