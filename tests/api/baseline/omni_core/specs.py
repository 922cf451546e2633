from __future__ import annotations
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

@dataclass(frozen=True, slots=True)
class Ref:
    target: str

    def resolve(self) -> Any:
        ...
Resolvable = Ref | Callable[..., Any]
WeightsKind: TypeAlias = Literal['none', 'loads', 'fixed']

class WeightLoader(Protocol):

    def check(self, model_path: str) -> None:
        ...

    def load(self, model_path: str) -> None:
        ...

@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    name: str
    factory: Resolvable
    process: str | None = None
    gpu: int | tuple[int, ...] | None = None
    tp_size: int = 1
    splits: bool = False
    replicas: int = 1
    memory_fraction: float | None = None
    not_on_cards_of: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    stream_to: tuple[str, ...] = ()
    wait_for: tuple[str, ...] = ()
    wait_for_fn: Resolvable | None = None
    merge_fn: Resolvable | None = None
    route_fn: Resolvable | None = None
    project_payload: Mapping[str, Resolvable] = field(default_factory=dict)
    terminal: Modality | None = None
    max_batch: int = 1
    max_wait_ms: float = 0.0
    max_concurrency: int = 1
    ar_engines: tuple[str, ...] = ()
    ar_engine: str | None = None
    weights: WeightsKind = 'fixed'
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    name: str
    architectures: tuple[str, ...]
    variants: Mapping[str, tuple[StageConfig, ...]]
    default_variant: str
    entry: str
    describe: Resolvable
    produces: Mapping[str, tuple[Modality, ...]] = field(default_factory=dict)
    cpu_processes: Mapping[str, str] = field(default_factory=dict)
    check_update: Resolvable | None = None
    build_tiny: Resolvable | None = None
    build_tiny_for: Mapping[str, Resolvable] = field(default_factory=dict)

@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionTask:
    language: str | None = None
    prompt: str = ''
    translate: bool = False

@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    messages: Resolvable
    sample_rate: int = 16000
    min_segment_s: float = 5.0
    max_segment_s: float = 30.0

@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceCloning:
    sample_rates: tuple[int, ...]
    min_s: float = 1.0
    max_s: float = 30.0
    quiet: float = 0.001
    max_characters: int = 1000

@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    context_length: int
    voices: tuple[str, ...] = ()
    default_voice: str | None = None
    sample_rate: int | None = None
    input_modalities: tuple[str, ...] = ('text',)
    refused_modalities: Mapping[Modality, str] = field(default_factory=dict)
    logprobs: bool = False
    reads_aloud: bool = False
    clones_voices: VoiceCloning | None = None
    completes_prompts: bool = False
    transcription: Transcription | None = None
    grammars: bool = False
    tools: bool = False

@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    stage: StageConfig
    model_path: str
    device: str
    other_devices: tuple[str, ...] = ()
    dtype: str
    ar_engine: str
    compile: str = 'off'
    report: Callable[[str], None]
    loads: Callable[[WeightLoader], None] = _forget
