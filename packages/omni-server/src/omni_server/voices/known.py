"""The voices that requests may name: the checkpoint's, and those that clients have uploaded.

Knows names, and what becomes of a request that is spoken with an uploaded voice: it brings the
recording along, as if the client had sent it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from omni_core.errors import RequestError
from omni_core.pipeline import Pipeline
from omni_core.specs import VoiceCloning
from omni_core.types import MediaPart, Request, VoiceSample
from omni_server.schema.chat import VoiceReference
from omni_server.voices.names import key_of
from omni_server.voices.store import VoiceCard, VoiceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Voices:
    """Those of one server."""

    pipeline: Pipeline
    store: VoiceStore

    @property
    def cloning(self) -> VoiceCloning | None:
        """What the recording of an uploaded voice must be; None where none can be spoken with."""
        return self.pipeline.info.clones_voices if "audio" in self.pipeline.modalities else None

    @property
    def presets(self) -> tuple[str, ...]:
        """Those of the checkpoint, as it spells them; none for a pipeline that does not speak."""
        return self.pipeline.info.voices if "audio" in self.pipeline.modalities else ()

    def preset(self, name: str) -> str | None:
        """The checkpoint's voice of this name, as it spells it."""
        known = {key_of(voice): voice for voice in self.pipeline.info.voices}
        return known.get(key_of(name))

    def uploads(self) -> list[VoiceCard]:
        """Those of clients; may wait for a disk."""
        return self.store.cards() if self.cloning else []

    def uploaded(self, name: str) -> VoiceCard | None:
        """One of them, however its name is written."""
        return self.store.card(name) if self.cloning else None

    def named(self, asked: str | VoiceReference, param: str) -> str:
        """The voice as it is spelled, whatever the case of `asked`; RequestError if there is no
        such."""
        name = asked.id if isinstance(asked, VoiceReference) else asked
        if preset := self.preset(name):
            return preset
        if card := self.uploaded(name):
            return card.name
        voices = ", ".join(self.pipeline.info.voices) or "none, leave the field out"
        others = "; GET /v1/audio/voices lists those that were uploaded" if self.cloning else ""
        raise RequestError(
            f"'{param}': there is no voice {name!r}; voices: {voices}{others}.", param=param
        )

    async def brought(self, requests: tuple[Request, ...], param: str) -> tuple[Request, ...]:
        """The choices of one request, with the recording in place of an uploaded voice's name;
        RequestError if the voice has been deleted meanwhile."""
        params = requests[0].params
        if params.voice is None or "audio" not in params.modalities or self.preset(params.voice):
            return requests
        voice = await asyncio.to_thread(self.store.voice, params.voice)
        if voice is None:
            raise RequestError(f"'{param}': the voice {params.voice!r} was deleted.", param=param)
        sample = VoiceSample(
            audio=MediaPart(kind="audio", data=voice.recording, param=param), text=voice.card.text
        )
        return tuple(
            msgspec.structs.replace(
                request,
                params=msgspec.structs.replace(request.params, voice=None),
                voice_sample=sample,
            )
            for request in requests
        )
