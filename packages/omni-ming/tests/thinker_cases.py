"""The Thinker's goldens as requests to an engine, and what the authors' replies to them were."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from golden_files import arrays

from omni_core.engine.base import Engine, EngineRequest
from omni_core.specs import StageConfig, StageContext
from omni_core.types import RequestParams, SamplingParams
from omni_ming import thinker
from omni_ming.model.config import ThinkerConfig
from omni_ming.payloads import Prepared
from omni_ming.prompt import row_keys

CASES = ("text", "image", "audio", "video", "mixed")
TOKENS = 12


def context(model_path: str, engine: str = "torch", **options: Any) -> StageContext:
    return StageContext(
        stage=StageConfig(name="thinker", factory=thinker.build, next=("decode",), options=options),
        model_path=model_path,
        device="cpu",
        dtype="float32",
        ar_engine=engine,
        report=lambda message: None,
    )


def golden(case: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{case}."): value
        for name, value in arrays("thinker").items()
        if name.startswith(f"{case}.")
    }


def prepared(case: str, config: ThinkerConfig) -> Prepared:
    """The prompt of a golden, with the rows that the authors' encoders made."""
    given = golden(case)
    ids = given["input_ids"][0]
    made = Prepared(
        input_ids=ids,
        positions=given["position_ids"][:, 0],
        rope_delta=int(given["rope_delta"][0, 0]),
    )
    media = (config.image_token_id, config.video_token_id, config.audio_token_id)
    rows = np.flatnonzero(np.isin(ids, media))
    if len(rows):
        made["media_index"] = rows
        made["media_embeds"] = torch.from_numpy(given["inputs_embeds"][0][rows])
        made["media_row_keys"] = -1 - np.arange(len(rows)) - 10_000 * CASES.index(case)
    return made


def request(
    case: str, config: ThinkerConfig, name: str = "", *, ignore_eos: bool = False
) -> EngineRequest:
    given = prepared(case, config)
    return EngineRequest(
        request_id=name or case,
        prompt_len=len(given["input_ids"]),
        inputs=given,
        params=RequestParams(),
        sampling=SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=ignore_eos),
        prompt_token_ids=tuple(given["input_ids"].tolist()),
        row_keys=row_keys(given),
    )


def generate(engine: Engine, requests: list[EngineRequest]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {one.request_id: [] for one in requests}
    for one in requests:
        engine.add(one)
    with engine.session():
        while engine.runnable():
            for output in engine.step():
                tokens[output.request_id].append(output.token)
    return tokens


def expected_tokens(case: str, config: ThinkerConfig) -> list[int]:
    """As far as the reply goes: the authors' loop ran on behind an end token."""
    tokens: list[int] = golden(case)["greedy_tokens"].tolist()
    ends = [i for i, token in enumerate(tokens) if token == config.eos_token_id]
    return tokens[: ends[0] + 1] if ends else tokens
