"""What the models here take from SGLang; the engine's own contact is a module of this name, too.
Nothing else in this package imports it.

| name | for |
|---|---|
| `Qwen3MoeForCausalLM` | subclassed: `model`, `lm_head`, `logits_processor`, `load_weights` |
| `Qwen3MoeSparseMoeBlock` | subclassed: the routed experts of a layer, in its `forward` |
| `Qwen2MoeMLP` | the shared expert |
| `VocabParallelEmbedding`, `tp_size` | embeddings that are whole on every rank |
| `ForwardBatch` | `forward_mode`, `req_pool_indices`, `extend_seq_lens` |
| `residual_batch` | `start`, `fold`, `final_norm`: a stack whose rows are read between two layers |
| `LogitsProcessorOutput` | what a model's forward returns |

Of a decoder layer two parts are replaced after it is made: `self_attn.rotary_emb`, which turns
queries and keys by the positions it is given, and `mlp`.
"""

from __future__ import annotations

from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.models.qwen2_moe import Qwen2MoeMLP
from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM, Qwen3MoeSparseMoeBlock

__all__ = [
    "ForwardBatch",
    "LogitsProcessorOutput",
    "Qwen2MoeMLP",
    "Qwen3MoeForCausalLM",
    "Qwen3MoeSparseMoeBlock",
    "VocabParallelEmbedding",
    "residual_batch",
]
