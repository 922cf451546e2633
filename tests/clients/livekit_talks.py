"""What LiveKit's realtime plugin makes of a server: a spoken turn, an interruption and another
turn, printed as JSON.

Run by the Python that has the plugin: `livekit_talks.py BASE_URL KEY MODEL VOICE WAV`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import wave
from typing import Any

import aiohttp
from livekit import rtc
from livekit.plugins import openai

HEARD_SAMPLES = 4_800
"""So much of the first reply is played before the user interrupts it."""
HEARD_MS = 200


async def played(session: Any, generation: Any, stop_after: int | None) -> dict[str, Any]:
    """One reply; after `stop_after` samples the user has heard enough."""
    async for message in generation.message_stream:
        texts: list[str] = []

        async def read(stream: Any = message.text_stream, texts: list[str] = texts) -> None:
            texts += [text async for text in stream]

        reading = asyncio.create_task(read())
        n_samples = 0
        async for frame in message.audio_stream:
            n_samples += frame.samples_per_channel
            if stop_after is not None and n_samples >= stop_after:
                session.interrupt()
                stop_after = None
        await reading
        return {"id": message.message_id, "samples": n_samples, "text": "".join(texts)}
    return {}


async def main() -> None:
    """Hold one session."""
    base_url, key, model_name, voice, path = sys.argv[1:]
    told: list[dict[str, Any]] = []
    async with aiohttp.ClientSession() as http:
        model = openai.realtime.RealtimeModel(
            model=model_name, base_url=base_url, api_key=key, voice=voice, http_session=http,
            turn_detection=None, input_audio_transcription=None,
        )  # fmt: skip
        session = model.session()
        session.on("openai_server_event_received", told.append)
        await session.update_instructions("Be brief.")
        with wave.open(path) as file:
            rate, samples = file.getframerate(), file.readframes(file.getnframes())
        session.push_audio(rtc.AudioFrame(samples, rate, 1, len(samples) // 2))
        session.commit_audio()
        first = await played(session, await session.generate_reply(), HEARD_SAMPLES)
        session.truncate(
            message_id=first["id"], modalities=["audio"], audio_end_ms=HEARD_MS, audio_transcript=""
        )
        again = await session.generate_reply(instructions="Say hello.")
        second = await played(session, again, HEARD_SAMPLES)
        await session.aclose()
    kinds = [event["type"] for event in told if "delta" not in event["type"]]
    json.dump({"first": first, "second": second, "kinds": kinds}, sys.stdout)


asyncio.run(main())
