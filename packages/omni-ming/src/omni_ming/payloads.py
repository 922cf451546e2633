"""What the stages of Ming-flash-omni hand each other: one dict per edge, all keys listed here.

S prompt tokens · P visual patches · H Thinker hidden size · arrays are numpy where made by
preprocessing and torch where made by a model. A key that does not apply is absent.

preprocessing -> image_encoder, audio_encoder, voice_encoder, mm_aggregate (`Prompt`)
mm_aggregate -> thinker (`Prepared`)
thinker -> decode (`omni_core.text.payloads.ReplyStart`), then chunks `TokenChunk`
thinker -> talker, segmenter: `SpeechStart`, then chunks `SpokenText`, in order, until the end
segmenter -> talker_stream: `SpeechStart`, then chunks `Utterance`
voice_encoder -> talker, talker_stream: `ClonedVoice`
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from omni_core.encoder.payloads import Visual, VisualFeatures
from omni_core.types import ByteArray, FloatArray, IntArray


class Audio(TypedDict):
    """The audio clips of a prompt as log-mel frames, in message order; see `Visual` on those met
    before. Each clip is encoded alone, so none is padded."""

    input_features: list[FloatArray | None]
    """Per clip (mel_bins, frames)."""
    encoded: list[ByteArray | None]
    """Per clip (n,), its file; None where there are frames."""
    lengths: IntArray
    """(items,) mel frames of each clip."""
    params: list[str]
    keys: list[bytes]
    rows: IntArray
    """(N,) rows of the prompt that the encoded clips replace, ascending."""
    row_keys: IntArray


class VoiceRecording(TypedDict):
    """A voice that a request brings, decoded and checked."""

    key: bytes
    """Equal for equal recordings."""
    sound: FloatArray
    """(n,) at the AudioVAE's rate."""
    heard: FloatArray
    """(m,) the same at 16 kHz."""
    text: str
    """What is said in it; "" if nobody knows."""


class ClonedVoice(TypedDict):
    """What voice_encoder makes of a `VoiceRecording`."""

    text: str
    latents: Any
    """Float32 (n, latent_dim), n a multiple of a patch."""
    speaker: NotRequired[Any]
    """Float32 (192,); absent where the checkpoint cannot embed."""


class Prompt(TypedDict):
    """A request as token ids with media beside them."""

    input_ids: IntArray
    """(S,), media placeholders expanded."""
    positions: IntArray
    """(3, S) time, height and width positions by the model's own rule."""
    rope_delta: int
    """Position of generated token i, on every axis, is S + i + rope_delta."""
    image: NotRequired[Visual]
    video: NotRequired[Visual]
    audio: NotRequired[Audio]
    routed: list[str]
    """Encoders of media that this prompt goes to; mm_aggregate waits for these."""
    spoken_text: NotRequired[str]
    """A text to read aloud: it is the reply, and nothing is to be computed."""
    voice: NotRequired[VoiceRecording]
    """For voice_encoder; absent for a voice of the checkpoint."""
    tool_use: NotRequired[bytes]
    """msgpack of the `ToolUse`; absent where nothing may be called."""
    raw: NotRequired[bool]
    """No template is around it, and all of the reply is text as it is."""


class Features(TypedDict):
    """Output of an encoder stage: image_encoder fills image/video, audio_encoder fills audio."""

    image: NotRequired[VisualFeatures]
    video: NotRequired[VisualFeatures]
    """"embeds" (N, H), each row of length 1."""
    audio: NotRequired[Any]
    """(N, H), each row of length 1."""


class Prepared(TypedDict):
    """All the Thinker needs to prefill."""

    input_ids: IntArray
    positions: IntArray
    rope_delta: int
    media_index: NotRequired[IntArray]
    """(M,) rows of the prompt whose embedding is replaced, ascending."""
    media_embeds: NotRequired[Any]
    """(M, H)."""
    media_row_keys: NotRequired[IntArray]
    """(M,) what the prefix cache knows these rows by."""
    spoken_text: NotRequired[str]
    """See `Prompt`."""
    cloned: NotRequired[bool]
    """The voice comes from voice_encoder."""
    tool_use: NotRequired[bytes]
    """See `Prompt`."""
    raw: NotRequired[bool]
    """See `Prompt`."""


class SpeechStart(TypedDict):
    """A reply that is to be spoken has begun."""

    cloned: NotRequired[bool]
    """See `Prepared`; who speaks waits for the voice."""
    voice: NotRequired[ClonedVoice]
    """Where who speaks has waited for it."""


class SpokenText(TypedDict):
    """More of the text to speak. Never ends within a character."""

    text: str


class Utterance(TypedDict):
    """One piece of the text for one run of the Talker."""

    text: str
    """As the front end leaves it: numbers written out, ready to be tokenised."""
    continues: bool
    """Its audio may be streamed while it is made (the rules of the authors' front end)."""
