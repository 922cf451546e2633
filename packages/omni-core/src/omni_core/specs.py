"""What a plugin declares: pipelines, their stages, and how a checkpoint is recognised.

Frozen and free of torch. Heavy things are named by `Ref`, imported in the process that uses them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from omni_core.errors import ConfigError
from omni_core.types import Modality


@dataclass(frozen=True, slots=True)
class Ref:
    """A lazily imported object, written "module:attribute"."""

    target: str

    def resolve(self) -> Any:
        """Import and return the object; a ConfigError says which half of the name is wrong."""
        module_name, _, attribute = self.target.partition(":")
        if not attribute:
            raise ConfigError(f"{self.target!r} must be written 'module:attribute'")
        try:
            module = importlib.import_module(module_name)
        except ImportError as exc:
            raise ConfigError(f"{self.target!r}: cannot import {module_name!r}: {exc}") from exc
        try:
            return getattr(module, attribute)
        except AttributeError as exc:
            raise ConfigError(f"{self.target!r}: {module_name!r} has no {attribute!r}") from exc


Resolvable = Ref | Callable[..., Any]


WeightsKind: TypeAlias = Literal["none", "loads", "fixed"]
"""Whether a stage can go on with another checkpoint's weights: it has none; its factory hands a
`WeightLoader` to `StageContext.loads`; or it cannot, and neither can its pipeline."""


class WeightLoader(Protocol):
    """Takes new weights into a stage that runs. Called on a thread of its own."""

    def check(self, model_path: str) -> None:
        """OmniError unless the checkpoint has every tensor of the stage, in its shape. Touches
        nothing."""

    def load(self, model_path: str) -> None:
        """Read the tensors into the places of the old ones, and forget what was computed with
        those. No request is in the stage. If it fails, it is called again for the old checkpoint,
        or the process is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """One stage of a pipeline. Fields that take callables take a `Ref` as well."""

    name: str
    factory: Resolvable
    """(StageContext) -> Scheduler, called in the stage's own process."""
    process: str | None = None
    """Stages that name the same process share one; None gives the stage its own."""
    gpu: int | tuple[int, ...] | None = None
    tp_size: int = 1
    """Ranks that one model is split over, each with a process and a card of its own."""
    splits: bool = False
    """Its model can be: `tp_size` may be above 1 on an engine with tensor parallelism."""
    replicas: int = 1
    """Processes like this one, of which a request meets one only; stages that share a process agree
    on their number. `gpu` names a card for each, or one for all."""
    memory_fraction: float | None = None
    """Share of the card's total memory this stage may hold, 0 to 1."""
    not_on_cards_of: tuple[str, ...] = ()
    """Stages this one must not share a card with."""
    next: tuple[str, ...] = ()
    stream_to: tuple[str, ...] = ()
    """Targets of `Outbox.stream`; each must be in `next`, which opens the request there first."""
    wait_for: tuple[str, ...] = ()
    """Sources whose payloads are merged into one before the scheduler sees the request."""
    wait_for_fn: Resolvable | None = None
    """(arrived: {source: payload}) -> the sources to wait for, or None while that is unknown."""
    merge_fn: Resolvable | None = None
    """({source: payload}) -> payload."""
    route_fn: Resolvable | None = None
    """(params: RequestParams, payload) -> the subset of `next` this request goes to."""
    project_payload: Mapping[str, Resolvable] = field(default_factory=dict)
    """{target: (payload) -> payload}: what each target gets to see; the whole payload if absent."""
    terminal: Modality | None = None
    """The modality whose events this stage emits; it ends the request for that modality."""
    max_batch: int = 1
    max_wait_ms: float = 0.0
    max_concurrency: int = 1
    """Requests a SimpleScheduler may work on at once, each in its own thread."""
    ar_engines: tuple[str, ...] = ()
    """Engines that an autoregressive stage can be driven by; empty for every other stage."""
    ar_engine: str | None = None
    """The one that drives it, resolved before any process starts; None is the pipeline's."""
    weights: WeightsKind = "fixed"
    """What becomes of them when an operator brings a new checkpoint."""
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings only this stage's factory understands; unknown ones are its error to raise. Those an
    operator may set are all named here; None leaves the value to the factory, which does not see
    it then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """A named graph of stages, in one or several variants, for the architectures it can serve."""

    name: str
    architectures: tuple[str, ...]
    """Values of "architectures" in config.json that this pipeline serves."""
    variants: Mapping[str, tuple[StageConfig, ...]]
    default_variant: str
    entry: str
    describe: Resolvable
    """(model_path) -> ModelInfo; reads small files only."""
    produces: Mapping[str, tuple[Modality, ...]] = field(default_factory=dict)
    """{variant: modalities it must be able to answer with}; a variant without a terminal for one of
    them is refused."""
    cpu_processes: Mapping[str, str] = field(default_factory=dict)
    """{stage: process} used on a CPU, where a process for every stage costs more than it gives."""
    check_update: Resolvable | None = None
    """(model_path, new_model_path) -> None; ConfigError unless the checkpoints differ in nothing
    but the numbers of their weights, as far as small files say. None: a pipeline that runs cannot
    change over."""
    build_tiny: Resolvable | None = None
    """(directory, seed) -> None; writes a tiny random checkpoint in the real format."""
    build_tiny_for: Mapping[str, Resolvable] = field(default_factory=dict)
    """{variant: the same, for checkpoints of which only this variant can be served}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionTask:
    """What a caller wants to be made of a clip of speech."""

    language: str | None = None
    """What is spoken, as an ISO 639-1 code (`omni_core.languages`); None if nobody said."""
    prompt: str = ""
    """Words and style to expect, in the caller's words."""
    translate: bool = False
    """Write it down in English, whatever is spoken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    """How a checkpoint is asked to write down speech."""

    messages: Resolvable
    """(clip: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]: the conversation to which
    the reply is the text of the clip, and nothing else."""
    sample_rate: int = 16_000
    """In Hz: what the model hears."""
    min_segment_s: float = 5.0
    max_segment_s: float = 30.0
    """Longer audio is cut at pauses, into segments of so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceCloning:
    """What a recording must be for a voice to be made of it."""

    sample_rates: tuple[int, ...]
    """In Hz: what the model hears it at; the first decides on its length."""
    min_s: float = 1.0
    """Of sound that is not silent."""
    max_s: float = 30.0
    """Of the whole."""
    quiet: float = 1e-3
    """Mean magnitude of a tenth of a second of silence, at most."""
    max_characters: int = 1000
    """Of what is said in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a server must know of a checkpoint to check requests before any stage sees them."""

    context_length: int
    voices: tuple[str, ...] = ()
    default_voice: str | None = None
    sample_rate: int | None = None
    input_modalities: tuple[str, ...] = ("text",)
    refused_modalities: Mapping[Modality, str] = field(default_factory=dict)
    """Output the pipeline has stages for and this checkpoint cannot give, each with the reason.
    Variants that would emit it are refused."""
    logprobs: bool = False
    """Text comes with log-probabilities where `SamplingParams.logprobs` asks for them."""
    reads_aloud: bool = False
    """Requests may be a text to speak (`Request.read_aloud`) where the variant emits audio; the
    entry stage gets it as `{"read_aloud": text}`."""
    clones_voices: VoiceCloning | None = None
    """Requests may bring such a recording of the voice to speak with (`Request.voice_sample`) where
    the variant emits audio; None if they may not."""
    completes_prompts: bool = False
    """Requests may be a raw prompt to complete (`Request.prompt`)."""
    transcription: Transcription | None = None
    """None if the checkpoint cannot be asked to write down speech."""
    grammars: bool = False
    """`SamplingParams.grammar` of a request is kept to."""
    tools: bool = False
    """`Request.tool_use` is shown to the model, and its calls come as `ToolCallDelta`."""


def _forget(loader: WeightLoader) -> None:
    """For a stage that is built outside of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """What a stage's factory may know."""

    stage: StageConfig
    model_path: str
    device: str
    """A torch device string: "cpu", "cuda:0"."""
    other_devices: tuple[str, ...] = ()
    """Where the model is split: those of the ranks after the first, `tp_size` - 1 of them."""
    dtype: str
    """A torch dtype name: "float32", "bfloat16"."""
    ar_engine: str
    """"torch" or "sglang": what drives the stage if it is autoregressive."""
    compile: str = "off"
    """"off", "background" or "wait": whether faster implementations of the stage's hot steps are
    made, and whether start-up waits for them (`omni_core.steps`)."""
    report: Callable[[str], None]
    """Say what start-up is doing ("loading weights 3/8"); shown to the operator."""
    loads: Callable[[WeightLoader], None] = _forget
    """Hand over what loads new weights into this stage, of a stage whose `weights` are "loads"."""
