"""What the Thinker here takes from SGLang; the engine's own contact is a module of this name, too.
Nothing else in this package imports it.

| name | for |
|---|---|
| `BailingMoEForCausalLM` | subclassed: `model`, `lm_head`, `logits_processor`, `load_weights` |
| `BailingMoEModel` | `word_embeddings`, `layers` |
| `BailingMoEAttention` | `rotary_emb`, `query_layernorm`, `key_layernorm` |
| `BailingMoESparseMoeBlock` | subclassed: its `experts`, its shared expert, and its three gates |
| `BailingMoESparseMoeBlock._forward_router_experts` | overridden: who visits whom is ours to say |
| `StandardTopKOutput` | who visits whom |
| `ForwardBatch` | `forward_mode`, `req_pool_indices`, `mm_token_modalities` |
| `LogitsProcessorOutput` | what a model's forward returns |

Of a decoder layer two parts are replaced after it is made: `attention.rotary_emb`, which turns
queries and keys by the positions it is given, and `mlp` where there are experts.
"""

from __future__ import annotations

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.models.bailing_moe import (
    BailingMoEAttention,
    BailingMoEForCausalLM,
    BailingMoEModel,
    BailingMoESparseMoeBlock,
)

__all__ = [
    "BailingMoEAttention",
    "BailingMoEForCausalLM",
    "BailingMoEModel",
    "BailingMoESparseMoeBlock",
    "ForwardBatch",
    "LogitsProcessorOutput",
    "StandardTopKOutput",
]
