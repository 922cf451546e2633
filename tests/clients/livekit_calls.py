"""What LiveKit's OpenAI plugin makes of a server: spoken, written and answered, printed as JSON.

Run by the Python that has the plugin: `livekit_calls.py BASE_URL KEY MODEL VOICE WAV TEXT URL`,
where URL is asked for speech.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import wave
from collections.abc import Callable, Coroutine
from typing import Any

from livekit import rtc
from livekit.agents import APIConnectOptions, APIStatusError, llm
from livekit.plugins import openai

ONCE = APIConnectOptions(max_retry=0, timeout=60)


async def speak(common: dict[str, str], voice: str, text: str, form: str | None) -> dict[str, Any]:
    """The frame that a room would play."""
    chosen = {} if form is None else {"response_format": form}
    tts = openai.TTS(voice=voice, **common, **chosen)
    frame = await tts.synthesize(text, conn_options=ONCE).collect()
    await tts.aclose()
    return {
        "pcm": base64.b64encode(bytes(frame.data)).decode(),
        "rate": frame.sample_rate,
        "channels": frame.num_channels,
    }


async def write(common: dict[str, str], path: str) -> dict[str, Any]:
    """The final transcript of a recording."""
    with wave.open(path) as file:
        rate, samples = file.getframerate(), file.readframes(file.getnframes())
    frame = rtc.AudioFrame(samples, rate, 1, len(samples) // 2)
    event = await openai.STT(language="en", **common).recognize(frame, conn_options=ONCE)
    return {"type": event.type.value, "text": event.alternatives[0].text}


async def answer(common: dict[str, str], text: str) -> dict[str, Any]:
    """The pieces of a chat's reply, and what it cost."""
    context = llm.ChatContext()
    context.add_message(role="system", content="Be brief.")
    context.add_message(role="user", content=text)
    pieces, usage = [], None
    model = openai.LLM(**common, max_completion_tokens=12)
    async with model.chat(chat_ctx=context, conn_options=ONCE) as stream:
        async for chunk in stream:
            if chunk.delta and chunk.delta.content:
                pieces.append(chunk.delta.content)
            usage = chunk.usage or usage
    return {"pieces": pieces, "total_tokens": usage and usage.total_tokens}


async def refused(call: Callable[[], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
    """The status of what is not served."""
    try:
        await call()
    except APIStatusError as error:
        return {"status": error.status_code, "message": error.message}
    return {"status": 200}


async def main() -> None:
    """Make every call once."""
    base_url, key, model, voice, path, text, speech_url = sys.argv[1:]
    common = {"base_url": base_url, "api_key": key, "model": model}
    tts = {**common, "base_url": speech_url}
    made = {
        "pcm": await speak(tts, voice, text, "pcm"),
        "mp3": await speak(tts, voice, text, None),
        "wav": await speak(tts, voice, text, "wav"),
        "stt": await write(common, path),
        "llm": await answer(common, text),
        "no voice": await refused(lambda: speak(tts, "alloy", text, "pcm")),
        "no model": await refused(lambda: write({**common, "model": "whisper-1"}, path)),
    }
    json.dump(made, sys.stdout)


asyncio.run(main())
