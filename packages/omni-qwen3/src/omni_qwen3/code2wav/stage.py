"""The code2wav stage: the vocoder behind the streaming scheduler.

Knows the stage's options. Knows nothing of who makes the codes or who hears the audio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from omni_core.checkpoint.renew import loader
from omni_core.errors import ConfigError
from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.cadence import Cadence
from omni_core.scheduler.streaming import StreamingScheduler, StreamingVocoder
from omni_core.specs import StageContext
from omni_core.steps import build_bank
from omni_qwen3.code2wav.model import PIECE_FRAMES, PREFIX, load_part
from omni_qwen3.code2wav.vocoder import Qwen3Vocoder, WindowVocoder

Decode: TypeAlias = Literal["stateful", "window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of this stage."""

    decode: Decode = "stateful"
    """"window" cuts long replies as transformers does; see `WindowVocoder`."""
    initial_frames: int = 1
    """Frames of the first chunk; more make the first audio late."""
    steady_frames: int = 8
    """Frames that later chunks grow to; more decode faster, fewer leave earlier."""
    max_replies: int = 64
    """Replies with a slot of state; further ones wait."""

    @classmethod
    def parse(cls, stage: str, options: Mapping[str, Any]) -> Options:
        """Check a stage's options; ConfigError lists every problem."""
        known = [option.name for option in fields(cls)]
        problems = [
            f"stage {stage!r} has no option {name!r}; it has {', '.join(known)}"
            for name in options
            if name not in known
        ]
        decode = options.get("decode", "stateful")
        if decode not in get_args(Decode):
            problems.append(f"{stage}.decode is {decode!r}; use {' or '.join(get_args(Decode))}")
        wrong = {
            name: options[name]
            for name in ("initial_frames", "steady_frames", "max_replies")
            if name in options and (not isinstance(options[name], int) or options[name] < 1)
        }
        problems += [
            f"{stage}.{name} is {value!r}; use a whole number above 0"
            for name, value in wrong.items()
        ]
        if problems:
            raise ConfigError(problems)
        parsed = cls(**options)
        if parsed.initial_frames > parsed.steady_frames:
            raise ConfigError(
                f"{stage}.initial_frames is {parsed.initial_frames}; it may be at most "
                f"steady_frames, {parsed.steady_frames}"
            )
        return parsed


def build(ctx: StageContext) -> Scheduler:
    """The stage's scheduler over the vocoder of the checkpoint."""
    options = Options.parse(ctx.stage.name, ctx.stage.options)
    part = load_part(ctx.model_path, device=ctx.device, dtype=ctx.dtype, report=ctx.report)
    ctx.loads(loader(ctx, (part,), (PREFIX,)))
    model = part.made
    bank = build_bank(ctx)
    cadence = Cadence(initial_frames=options.initial_frames, steady_frames=options.steady_frames)
    vocoder: StreamingVocoder
    match options.decode:
        case "stateful":
            vocoder = Qwen3Vocoder(
                model, bank, max_replies=options.max_replies, chunk_frames=cadence.sizes
            )
        case "window":
            vocoder = WindowVocoder(model)
    # On a CPU more than one step's frames would only make the first of them late.
    push_frames = PIECE_FRAMES if ctx.device == "cpu" else None
    return StreamingScheduler(
        vocoder, cadence=cadence, push_frames=push_frames, more_stats=bank.stats
    )
