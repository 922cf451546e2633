"""Settings people know from other servers that this one does not have, and what to do instead.

Data: the spellings people try, each with the reason. Asked only about names nobody declares, so a
plugin's own option may still use one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Something that is not supported."""

    what: str
    reason: str
    mend: str
    names: tuple[str, ...] = ()
    """Settings that ask for it, in lower case with underscores."""
    devices: tuple[str, ...] = ()
    """Values of `device` that ask for it."""


REFUSED: Final = (
    Refused(
        what="overlap scheduling",
        reason="a stage with feedback makes its next input from the token just sampled, so no step "
        "can be scheduled before the last one has ended",
        mend="leave it out",
        names=(
            "overlap_schedule",
            "enable_overlap_schedule",
            "disable_overlap_schedule",
            "enable_overlap",
            "async_scheduling",
            "num_scheduler_steps",
        ),
    ),
    Refused(
        what="LoRA",
        reason="engines load the checkpoint's own weights only, without adapters",
        mend="merge the adapter into a checkpoint and serve that",
        names=(
            "lora",
            "enable_lora",
            "lora_path",
            "lora_paths",
            "lora_modules",
            "lora_backend",
            "max_lora_rank",
            "max_loras",
            "max_loras_per_batch",
        ),
    ),
    Refused(
        what="speculative decoding",
        reason="every token must pass through the stage's own runner, whose hidden states the next "
        "stage needs; a draft model has none",
        mend="leave it out",
        names=(
            "speculative",
            "speculative_algorithm",
            "speculative_config",
            "speculative_model",
            "speculative_draft_model_path",
            "speculative_num_steps",
            "speculative_num_draft_tokens",
            "num_speculative_tokens",
            "draft_model",
        ),
    ),
    Refused(
        what="prefill/decode disaggregation",
        reason="prefill and decode of a stage share one KV cache in one process",
        mend="give each stage a card of its own with --STAGE.gpu N",
        names=(
            "disaggregation",
            "disaggregation_mode",
            "disaggregation_transfer_backend",
            "disaggregation_bootstrap_port",
            "enable_disaggregation",
            "pd_disaggregation",
            "kv_transfer_config",
        ),
    ),
    Refused(
        what="tensor parallelism over all stages",
        reason="each stage is split by itself, and few can be",
        mend="set --STAGE.tp_size N for the large one, or spread the stages with --STAGE.gpu N",
        names=("tp", "tp_size", "tensor_parallel_size", "tensor_model_parallel_size"),
    ),
    Refused(
        what="more than one copy of the pipeline",
        reason="a server runs one",
        mend="set --STAGE.replicas N for the stages that are slow, or start several servers behind "
        "a load balancer",
        names=(
            "dp",
            "dp_size",
            "data_parallel_size",
            "pp_size",
            "pipeline_parallel_size",
            "replicas",
        ),
    ),
    Refused(
        what="an Intel accelerator",
        reason="only CUDA cards and CPUs are supported",
        mend="use --device cpu",
        devices=("xpu", "hpu", "gaudi", "sycl", "openvino"),
    ),
    Refused(
        what="an Ascend accelerator",
        reason="only CUDA cards and CPUs are supported",
        mend="use --device cpu",
        devices=("npu", "ascend"),
    ),
    Refused(
        what="an AMD accelerator",
        reason="only CUDA cards and CPUs are supported, and none of the kernels has been tried on "
        "ROCm",
        mend="use --device cpu",
        devices=("hip", "rocm", "amd"),
    ),
    Refused(
        what="an Apple accelerator",
        reason="only CUDA cards and CPUs are supported",
        mend="use --device cpu",
        devices=("mps", "metal"),
    ),
    Refused(
        what="a TPU",
        reason="only CUDA cards and CPUs are supported",
        mend="use --device cpu",
        devices=("tpu", "xla"),
    ),
)

_BY_NAME: Final[Mapping[str, Refused]] = {name: item for item in REFUSED for name in item.names}
_BY_DEVICE: Final[Mapping[str, Refused]] = {d: item for item in REFUSED for d in item.devices}


def refused_setting(name: str) -> str | None:
    """Why a setting of this name, in any spelling, is refused; None if it is merely unknown."""
    item = _BY_NAME.get(name.strip("-").replace("-", "_").lower())
    return None if item is None else _sentence(item)


def refused_device(device: str) -> str | None:
    """Why a device ("xpu", "mps:0") is refused; None if it is merely unknown or fine."""
    item = _BY_DEVICE.get(device.partition(":")[0].lower())
    return None if item is None else _sentence(item)


def _sentence(item: Refused) -> str:
    return f"{item.what} is not supported: {item.reason}; {item.mend}"
