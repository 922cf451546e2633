"""The decode stage: the Thinker's tokens in, text for the client out."""

from __future__ import annotations

from omni_core.scheduler.base import Scheduler
from omni_core.specs import StageContext
from omni_core.text.decode import DecodeScheduler
from omni_core.text.detokenize import TokenBytes
from omni_ming.defaults import eos_token_ids


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler; needs the tokenizer and the end tokens of the checkpoint."""
    ctx.report("loading tokenizer")
    return DecodeScheduler(TokenBytes(ctx.model_path), eos_token_ids(ctx.model_path), reasons=True)
