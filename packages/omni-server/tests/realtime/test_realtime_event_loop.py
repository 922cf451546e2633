"""Nothing long is done on the event loop, whatever a client says.

Measured as processor time of the loop's thread between two of its turns, which other work of the
machine does not change.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import time
from typing import Any

import pytest

LONGEST_TURN_S = 0.03
"""What is done in one piece here takes several times as long where it is done on the loop."""
MIB = 2**20
HELLO: dict[str, Any] = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "Hello"}],
}

MANY = {**HELLO, "content": HELLO["content"] * 16}


async def longest_turn_s(work: Any) -> float:
    """The most that the loop's thread computes in one turn while the work is done."""
    doing = asyncio.ensure_future(work)
    gc.disable()  # whose turns are as long as the whole test session has made them
    try:
        longest, last = 0.0, time.thread_time()
        while not doing.done():
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
    finally:
        gc.enable()
    await doing
    return longest


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, "event_id": "mine", **fields})


def spoken(n_bytes: int) -> dict[str, Any]:
    audio = base64.b64encode(bytes(n_bytes)).decode()
    content = [{"type": "input_audio", "audio": audio}]
    return {"type": "message", "role": "user", "content": content, "id": "said"}


TOOLS = [{"type": "function", "name": f"f{n}", "description": "x" * 2_000,
          "parameters": {"type": "object"}} for n in range(100)]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (event("input_audio_buffer.append", audio="A" * (20 * MIB)), None),
        (event("input_audio_buffer.append", audio="A" * (20 * MIB - 1)), "invalid_value"),
        (event("conversation.item.create", item=spoken(14 * MIB)), None),
        (event("session.update", session={"tools": TOOLS}), None),
        (event("session.update", session={"tools": TOOLS * 120}), "unsupported_value"),
        (event("session.update", session={"instructions": "x" * MIB}), None),
        (event("response.create", response={"input": [MANY] * 2_000, "conversation": "none"}),
         None),
        (event("response.create", response={"input": [[1]] * 2 * MIB}), "event_too_large"),
        ('{"type": "response.create", "a": [[1]' + ",[1]" * 2 * MIB, "event_too_large"),
        ('{"type": "response.create", "a": [[1]' + ",[1]" * 200_000, "invalid_json"),
        (event("no.such", a=[[1]] * 4 * MIB), "event_too_large"),
        (event("no.such", a=[[1]] * 200_000), "invalid_value"),
        (event("response.create", response={"input": [[1]] * 200_000}), "invalid_value"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
async def test_long_events(desk: Any, text: str, code: str | None) -> None:
    await desk.update(audio={"input": {"turn_detection": None}}, output_modalities=["text"])
    n_said = len(desk.said)
    assert await longest_turn_s(desk.session.hear(text)) < LONGEST_TURN_S
    await desk.quiet()
    errors = [one["error"]["code"] for one in desk.said[n_said:] if one["type"] == "error"]
    assert errors == ([] if code is None else [code])


async def test_a_long_turn_is_committed(desk: Any) -> None:
    await desk.update(audio={"input": {"turn_detection": None}})
    for _ in range(2):
        await desk.session.hear(event("input_audio_buffer.append", audio="A" * (18 * MIB)))
    commit = event("input_audio_buffer.commit")
    assert await longest_turn_s(desk.session.hear(commit)) < LONGEST_TURN_S
    assert desk.shared.conversation.items[0].sound_bytes == 27 * MIB


async def test_a_long_item_is_shown(desk: Any) -> None:
    await desk.tell("conversation.item.create", item=spoken(4 * MIB))
    show = event("conversation.item.retrieve", item_id="said")
    assert await longest_turn_s(desk.session.hear(show)) < LONGEST_TURN_S
