"""The talker and talker_stream stages: text in, sound out. Puts their parts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from omni_core.checkpoint.renew import loader
from omni_core.encoder.options import whole_number
from omni_core.engine import build_engine
from omni_core.scheduler.base import Scheduler
from omni_core.specs import StageContext, WeightLoader
from omni_core.steps import build_bank
from omni_ming.defaults import TALKER, default_voice
from omni_ming.silence import SilenceTrim
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.talker.runner import WEIGHTS, load_runner
from omni_ming.talker.scheduler import SpeechScheduler
from omni_ming.talker.script import Director, Script, Utterances, WholeText
from omni_ming.vae.config import FOLDER as VAE
from omni_ming.vae.decoder import PREFIXES as VAE_WEIGHTS
from omni_ming.vae.stream import StreamingVae
from omni_ming.voices import Voices

AT_ONCE = "utterances_at_once"
DEFAULT_AT_ONCE = 4
"""Utterances of one request that the engine makes together: with more, the first is heard later."""
SCRIPTS: Mapping[str, Callable[[], Script]] = {"talker": WholeText, "talker_stream": Utterances}
"""What the stage is given, by its name."""


def build(ctx: StageContext) -> Scheduler:
    """The stage over the embedded engine."""
    bank = build_bank(ctx)
    runner = load_runner(ctx, bank)
    engine = build_engine(ctx, runner)
    vae = StreamingVae.load(ctx)
    ctx.loads(
        _Loaders(
            loader(ctx, runner.parts, WEIGHTS, folder=TALKER),
            loader(ctx, vae.parts, VAE_WEIGHTS, folder=VAE),
        )
    )
    patch_s = runner.config.patch * vae.decoder.config.samples_per_latent / vae.sample_rate
    voices = Voices(ctx.model_path)
    director = Director(
        ctx.stage.name,
        TalkerPrompts(ctx.model_path),
        voices,
        default_voice(ctx.model_path),
        runner.config,
        patch_s,
    )
    return SpeechScheduler(
        engine,
        director,
        vae,
        script=SCRIPTS[ctx.stage.name],
        trim=lambda: SilenceTrim(vae.sample_rate),
        at_once=whole_number(ctx.stage, AT_ONCE, DEFAULT_AT_ONCE),
        more_stats=lambda: {**runner.flow.stats(), **bank.stats()},
    )


class _Loaders:
    """New weights for a stage with two folders of them. Voices keep what they were made into: their
    files are compared before anything is loaded."""

    def __init__(self, *loaders: WeightLoader) -> None:
        self._loaders = loaders

    def check(self, model_path: str) -> None:
        """See `WeightLoader`."""
        for one in self._loaders:
            one.check(model_path)

    def load(self, model_path: str) -> None:
        """See `WeightLoader`."""
        for one in self._loaders:
            one.load(model_path)
