"""What a pipeline says of itself before anything of it runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omni_core import devices
from omni_core.coordinator.manifest import manifest
from omni_core.coordinator.plan import Plan
from omni_core.pipeline import AdmissionLimits, Pipeline
from omni_core.specs import Ref, StageConfig
from omni_core.testing import echo

COMMIT = "0123456789abcdef0123456789abcdef01234567"
STAGES = (
    StageConfig(
        name="thinker", factory=Ref("m:f"), gpu=(0, 1), replicas=2, process="front",
        ar_engines=("torch",), ar_engine="torch",
    ),
    StageConfig(name="voice", factory=Ref("m:f"), ar_engine="torch"),
)  # fmt: skip


def plan(path: str) -> Plan:
    return Plan(model_path=path, stages=STAGES, entry="thinker", dtype="bfloat16")


def test_every_stage_has_its_place_and_engine() -> None:
    stages = manifest(plan("/models/parrot"), "parrot", "speech").stages
    assert msgspec.to_builtins(stages) == {
        "thinker": {
            "process": "front", "devices": ("cuda:0", "cuda:1"), "replicas": 2, "tp_size": 1,
            "ar_engine": "torch",
        },
        "voice": {
            "process": "voice", "devices": ("cpu",), "replicas": 1, "tp_size": 1, "ar_engine": None,
        },
    }  # fmt: skip


def test_a_checkpoint_is_named_without_its_path() -> None:
    directory = manifest(plan("/home/ann/models/parrot"), "parrot", "speech")
    assert (directory.checkpoint, directory.revision) == ("parrot", None)
    cached = f"/cache/hub/models--lab--par-rot--2/snapshots/{COMMIT}"
    snapshot = manifest(plan(cached), "parrot", "speech")
    assert (snapshot.checkpoint, snapshot.revision) == ("lab/par-rot--2", COMMIT)
    assert "/home" not in str(directory)


def test_a_loaded_pipeline_has_one_before_it_runs(tmp_path: Path) -> None:
    limits = AdmissionLimits(max_queue=3)
    path = echo.write_checkpoint(tmp_path / "model")
    pipeline = Pipeline.load(path, device="cpu", plugins=echo.plugins(), limits=limits)
    said = pipeline.manifest()
    assert (said.pipeline, said.variant, said.checkpoint) == ("echo", "speech", "model")
    assert set(said.stages) == set(pipeline.stages)
    assert pipeline.limits == limits


def test_a_machine_without_a_driver_has_no_cards() -> None:
    assert len(devices.card_names()) == devices.cuda_device_count()
