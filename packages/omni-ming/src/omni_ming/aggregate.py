"""The mm_aggregate stage: joins a prompt with what the encoders made of its media.

Knows which rows of a prompt are media. Runs no model; torch is imported when features arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from omni_core.encoder.rows import in_prompt_order
from omni_core.scheduler.base import Scheduler
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import IntArray, Payload
from omni_ming.payloads import Prepared, Prompt


def build(ctx: StageContext) -> Scheduler:
    """Merging happens on arrival (`merge`), so the stage itself only passes on."""
    return SimpleScheduler(
        lambda works: [work.payload for work in works], max_batch=ctx.stage.max_batch
    )


def wait_for_fn(arrived: Mapping[str, Payload]) -> set[str] | None:
    """The sources a request waits for: the encoders its prompt was routed to. None until the
    prompt is here and says so."""
    prompt = arrived.get("preprocessing")
    return None if prompt is None else {"preprocessing", *prompt["routed"]}


def merge(arrived: Mapping[str, Payload]) -> Payload:
    """A `Prompt` and the `Features` of its encoders -> `Prepared`."""
    prompt = cast(Prompt, arrived["preprocessing"])
    prepared = Prepared(
        input_ids=prompt["input_ids"],
        positions=prompt["positions"],
        rope_delta=prompt["rope_delta"],
    )
    if "spoken_text" in prompt:
        prepared["spoken_text"] = prompt["spoken_text"]
    if "voice" in prompt:
        prepared["cloned"] = True
    if "tool_use" in prompt:
        prepared["tool_use"] = prompt["tool_use"]
    if "raw" in prompt:
        prepared["raw"] = prompt["raw"]
    media: list[tuple[IntArray, Any]] = []
    if "audio" in prompt:
        media.append((prompt["audio"]["rows"], arrived["audio_encoder"]["audio"]))
    if "image" in prompt:
        media.append((prompt["image"]["rows"], arrived["image_encoder"]["image"]["embeds"]))
    if "video" in prompt:
        media.append((prompt["video"]["rows"], arrived["image_encoder"]["video"]["embeds"]))
    if media:
        prepared["media_index"], prepared["media_embeds"] = in_prompt_order(media, dim=0)
        prepared["media_row_keys"] = _row_keys(prompt)
    return cast(Payload, prepared)


def _row_keys(prompt: Prompt) -> IntArray:
    """Keys of all media rows, in prompt order."""
    parts = [prompt[kind] for kind in ("audio", "image", "video") if kind in prompt]
    order = np.argsort(np.concatenate([part["rows"] for part in parts]))
    return np.concatenate([part["row_keys"] for part in parts])[order]
