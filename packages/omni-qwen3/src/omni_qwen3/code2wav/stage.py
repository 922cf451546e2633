"""The code2wav stage: the vocoder behind the streaming scheduler.

Knows the stage's options. Knows nothing of who makes the codes or who hears the audio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from omni_core.errors import ConfigError
from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.streaming import StreamingScheduler, StreamingVocoder
from omni_core.specs import StageContext
from omni_qwen3.code2wav.model import Code2Wav, load_model
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder, WindowVocoder

Decode: TypeAlias = Literal["stateful", "window"]
VOCODERS: Mapping[str, Callable[[Code2Wav, str], StreamingVocoder]] = {
    "stateful": Qwen3Vocoder,
    "window": WindowVocoder,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of this stage."""

    decode: Decode = "stateful"
    """"window" cuts long replies as transformers does; see `WindowVocoder`."""
    max_frames_per_push: int = 4
    """More decode faster, fewer let the first audio leave earlier."""

    @classmethod
    def parse(cls, stage: str, options: Mapping[str, Any]) -> Options:
        """Check a stage's options; ConfigError lists every problem."""
        known = cls.__dataclass_fields__
        problems = [
            f"stage {stage!r} has no option {name!r}; it has {', '.join(known)}"
            for name in options
            if name not in known
        ]
        decode = options.get("decode", "stateful")
        if decode not in VOCODERS:
            problems.append(f"{stage}.decode is {decode!r}; use {' or '.join(VOCODERS)}")
        frames = options.get("max_frames_per_push", 1)
        if not isinstance(frames, int) or frames < 1:
            problems.append(
                f"{stage}.max_frames_per_push is {frames!r}; use a whole number above 0"
            )
        if problems:
            raise ConfigError(problems)
        return cls(**options)


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler over the vocoder of the checkpoint."""
    options = Options.parse(ctx.stage.name, ctx.stage.options)
    model = load_model(ctx.model_path, device=ctx.device, dtype=ctx.dtype, report=ctx.report)
    vocoder = VOCODERS[options.decode](model, ctx.device)
    return StreamingScheduler(vocoder, max_frames_per_push=options.max_frames_per_push)
