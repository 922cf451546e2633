"""What becomes of the requests that schemathesis makes up, before they are sent.

Replies of hours and deadlines that pass are not asked for. Half of the uploads are recordings, and
half of the bodies lose what is hardly ever served, so that the rest of them reaches the model.
Loaded by it as its hooks.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import schemathesis
from journal import VARIABLE, note, note_answer

from omni_core.media import wav_bytes

MESSAGES = [{"role": "user", "content": "Hi"}]
SELDOM_SERVED = (
    *("functions", "function_call", "reasoning_effort", "service_tier", "verbosity", "store"),
    *("web_search_options", "mm_processor_kwargs", "images", "audios", "videos", "stage_params"),
    *(
        "tools",
        "tool_choice",
        "response_format",
        "metadata",
        "stream_options",
        "modalities",
        "audio",
    ),
    *("voice", "instructions", "ref_audio", "ref_text", "speaker_embedding", "logit_bias", "stop"),
)
"""A made up value of these is as good as never one that is served."""
LEVELS = ("WARNING", "ERROR", "CRITICAL")
"""Of logging, and too high for exceptions of stage processes to be seen."""
MOST_TOKENS = 8
LEAST_TIMEOUT_S = 120
MOST_PROFILE_S = 0.2
RECORDING = wav_bytes(np.sin(np.arange(8_000, dtype=np.float32) * 0.1), 16_000)
LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: Any) -> None:
    """Change a body that is an object, send others as they are, and note what is sent."""
    if isinstance(case.body, dict):
        case.body = modest(case.body)
    note(Path(os.environ[VARIABLE]), case.method, case.formatted_path, case.query, case.body)


@schemathesis.hook
def after_call(
    context: schemathesis.HookContext, case: schemathesis.Case, response: schemathesis.Response
) -> None:
    """Note that there was an answer."""
    note_answer(Path(os.environ[VARIABLE]))


def modest(body: dict[str, Any]) -> dict[str, Any]:
    """The body with what would take minutes made small, and no deadline that passes: a 504."""
    body = {
        **body,
        **capped(body, LIMITS, MOST_TOKENS),
        **capped(body, ("seconds",), MOST_PROFILE_S),
    }
    if body.get("level") in LEVELS:
        body["level"] = "INFO"
    if is_number(body.get("timeout")) and body["timeout"] > 0:
        body["timeout"] = max(body["timeout"], LEAST_TIMEOUT_S)
    if isinstance(body.get("file"), bytes) and len(body["file"]) % 2:
        body["file"] = RECORDING
    chance = random.Random(repr(body))
    if chance.random() < 0.5:
        kept = chance.choice(SELDOM_SERVED)
        body = {name: body[name] for name in body if name == kept or name not in SELDOM_SERVED}
        body.update({"messages": MESSAGES} if "messages" in body else {})
    stages = body.get("stage_params")
    if isinstance(stages, dict):
        body["stage_params"] = {
            name: {**said, **capped(said, LIMITS, MOST_TOKENS)} if isinstance(said, dict) else said
            for name, said in stages.items()
        }
    return body


def capped(values: dict[str, Any], names: tuple[str, ...], most: float) -> dict[str, Any]:
    """Those of the named numbers that there are, `most` at most."""
    return {name: min(values[name], most) for name in names if is_number(values.get(name))}


def is_number(value: Any) -> bool:
    """Whether JSON has it as a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
