from __future__ import annotations
import json
import os
import re
import time
from pathlib import Path
from types import ModuleType
from typing import assert_never
import msgspec
import numpy as np
SAMPLE_RATE = 24000
SAMPLES_PER_WORD = 240
BIG_BYTES = 4 * 1024 * 1024
BUSY_S = 3.0

def intake(works: list[Work]) -> list[Payload | RequestError]:
    ...

class Writer:

    def __init__(self, weights: EchoWeights) -> None:
        ...

    def run(self, inbox: Inbox, outbox: Outbox) -> None:
        ...

    def stats(self) -> dict[str, float]:
        ...

class ToneVocoder:
    sample_rate = SAMPLE_RATE
    max_replies: int | None = None

    def open(self, params: RequestParams, payload: Payload) -> None:
        ...

    def push(self, states: list[None], codes: list[IntArray]) -> list[FloatArray]:
        ...

    def flush(self, state: None) -> FloatArray:
        ...

    def close(self, state: None) -> None:
        ...

def build_intake(ctx: StageContext) -> Scheduler:
    ...

def build_writer(ctx: StageContext) -> Scheduler:
    ...

def build_voice(ctx: StageContext) -> Scheduler:
    ...

def route_writer(params: RequestParams, payload: Payload) -> list[str]:
    ...

def describe(model_path: str) -> ModelInfo:
    ...
PIPELINE = PipelineConfig(name='echo', architectures=('EchoForTests',), variants={'speech': _stages()}, default_variant='speech', entry='intake', describe=describe, check_update=Ref('omni_core.testing.echo_weights:same_model'), cpu_processes={'intake': 'front', 'writer': 'front'})

@hookimpl
def register_pipelines() -> list[PipelineConfig]:
    ...

def plugins() -> Plugins:
    ...

def write_checkpoint(directory: Path) -> str:
    ...
