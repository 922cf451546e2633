"""The stages that speak: `talker` when a reply has ended, `talker_stream` while it is written.

Both hold the language model, the flow, the aggregator and the AudioVAE. Knows what they are built
of. Knows nothing of how they run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from omni_core.checkpoint.renew import PartsLoader, loader
from omni_core.encoder.options import whole_number
from omni_core.engine import build_engine
from omni_core.scheduler.base import Scheduler
from omni_core.specs import StageContext
from omni_core.steps import StepBank, build_bank
from omni_ming.defaults import TALKER
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.talker.runner import WEIGHTS, TalkerRunner, load_runner
from omni_ming.talker.scheduler import SpeechScheduler
from omni_ming.talker.script import Director, Script, Utterances, WholeText
from omni_ming.vae.config import FOLDER
from omni_ming.vae.decoder import PREFIXES
from omni_ming.vae.stream import StreamingVae
from omni_ming.voices import Voices

AT_ONCE: Final = "utterances_at_once"
"""Option: utterances of one request that the engine has at a time. More of them fill its batches,
and slow down the one that is heard."""
DEFAULT_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class SpeechLoader:
    """`WeightLoader` of these stages: the Talker, the VAE, and the voices, which are made anew."""

    talker: PartsLoader
    vae: PartsLoader
    director: Director

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        self.talker.check(model_path)
        self.vae.check(model_path)

    def load(self, model_path: str) -> None:
        """See `WeightLoader`."""
        self.talker.load(model_path)
        self.vae.load(model_path)
        self.director.voices = Voices(model_path, ready=True)


def build(ctx: StageContext) -> Scheduler:
    """The stage whose chunks are a reply's text (`SpokenText`)."""
    return _build(ctx, WholeText)


def build_stream(ctx: StageContext) -> Scheduler:
    """The stage whose chunks are utterances."""
    return _build(ctx, Utterances)


def _build(ctx: StageContext, script: Callable[[], Script]) -> Scheduler:
    bank = build_bank(ctx)
    at_once = whole_number(ctx.stage, AT_ONCE, DEFAULT_AT_ONCE)
    vae, runner = StreamingVae.load(ctx), load_runner(ctx, bank)
    config, sizes = runner.config, vae.decoder.config
    director = Director(
        ctx.stage.name,
        TalkerPrompts(ctx.model_path, config.patch),
        Voices(ctx.model_path, ready=True),
        patch_s=config.patch * sizes.samples_per_latent / sizes.sample_rate,
    )
    engine = build_engine(ctx, runner)  # last: it takes what is left of the stage's memory
    ctx.loads(
        SpeechLoader(
            talker=loader(ctx, runner.parts, WEIGHTS, folder=TALKER),
            vae=loader(ctx, vae.parts, PREFIXES, folder=FOLDER),
            director=director,
        )
    )
    return SpeechScheduler(
        engine,
        director,
        vae,
        script=script,
        at_once=at_once,
        more_stats=lambda: _stats(bank, runner),
    )


def _stats(bank: StepBank, runner: TalkerRunner) -> dict[str, float]:
    return {**bank.stats(), **runner.flow.stats()}
