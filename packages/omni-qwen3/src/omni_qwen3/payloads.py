"""What the stages of Qwen3-Omni hand each other: one dict per edge, all keys listed here.

S prompt tokens · P visual patches · H Thinker hidden size · G code groups · arrays are numpy where
made by preprocessing and torch where made by a model. A key that does not apply is absent.

preprocessing -> image_encoder, audio_encoder, mm_aggregate (`Prompt`)
mm_aggregate -> thinker (`Prepared`)
thinker -> decode (`ReplyStart`), then chunks `TokenChunk`
thinker -> talker_ar (`Conditioning`), then chunks `{"row": (H,)}`, one per further spoken token
talker_ar -> code2wav: `{}`, then chunks int64 (G, frames)
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from omni_core.types import FinishReason, FloatArray, IntArray


class Visual(TypedDict):
    """Patches of the images (or videos) of a prompt, concatenated in message order."""

    pixel_values: FloatArray
    """(P, 3 * temporal_patch * patch * patch)."""
    grid_thw: IntArray
    """(items, 3): temporal, height and width in patches, before merging."""
    params: list[str]
    """What an error about each item names."""
    rows: IntArray
    """(N,) rows of the prompt that the merged patches replace, ascending."""
    second_per_grid: NotRequired[list[float]]
    """Videos only: seconds between two temporal patches, per item."""


class Audio(TypedDict):
    """Log-mel frames of the audio clips of a prompt, concatenated in message order."""

    input_features: FloatArray
    """(mel_bins, total frames)."""
    lengths: IntArray
    """(items,) frames of each clip."""
    rows: IntArray
    """(N,) rows of the prompt that the encoded clips replace, ascending."""


class Prompt(TypedDict):
    """A request as token ids with media beside them."""

    input_ids: IntArray
    """(S,), media placeholders expanded."""
    positions: FloatArray
    """(3, S) M-RoPE positions of the Thinker; fractional where a video's frame rate makes them so,
    as in transformers."""
    rope_delta: float
    """Position of generated token i is S + i + rope_delta."""
    image: NotRequired[Visual]
    video: NotRequired[Visual]
    audio: NotRequired[Audio]
    routed: list[str]
    """Encoders this prompt goes to; mm_aggregate waits for these."""


class VisualFeatures(TypedDict):
    """What image_encoder makes of one `Visual`; rows in placeholder order."""

    embeds: Any
    """(N, H)."""
    deepstack: Any
    """(levels, N, H)."""


class Features(TypedDict):
    """Output of an encoder stage: image_encoder fills image/video, audio_encoder fills audio."""

    image: NotRequired[VisualFeatures]
    video: NotRequired[VisualFeatures]
    audio: NotRequired[Any]
    """(N, H)."""


class Prepared(TypedDict):
    """All the Thinker needs to prefill."""

    input_ids: IntArray
    positions: FloatArray
    rope_delta: float
    media_index: NotRequired[IntArray]
    """(M,) rows of the prompt whose embedding is replaced."""
    media_embeds: NotRequired[Any]
    """(M, H)."""
    visual_index: NotRequired[IntArray]
    """(V,) rows that get deepstack features added."""
    deepstack: NotRequired[Any]
    """(levels, V, H): level i is added to the output of decoder layer i."""
    image_grid_thw: NotRequired[IntArray]
    video_grid_thw: NotRequired[IntArray]
    second_per_grid: NotRequired[list[float]]
    audio_lengths: NotRequired[IntArray]


class ReplyStart(TypedDict):
    """What decode must know of the prompt."""

    opened: bool
    """The prompt's last turn has begun a thought (`<think>`) for the reply to continue."""


class TokenChunk(TypedDict):
    """One sampled token of the reply. End tokens come too; decode never shows them."""

    token: int
    finish: FinishReason | None


class Conditioning(TypedDict):
    """The Talker's prompt, in Thinker space (see the reference in `talker`)."""

    speak: bool
    """False when the reply has nothing to say; then no other key is present."""
    user_ids: NotRequired[IntArray]
    """(U,) token ids of all user turns."""
    user_rows: NotRequired[Any]
    """(U, H): input embedding at text positions, `accept_hidden_layer` state at media positions."""
    user_is_media: NotRequired[Any]
    """Bool (U,)."""
    assistant_rows: NotRequired[Any]
    """(3, H) input embeddings of <|im_start|>, assistant and the newline of the last turn."""
    first_row: NotRequired[Any]
    """(H,) input embedding of the first spoken token."""
    image_grid_thw: NotRequired[IntArray]
    video_grid_thw: NotRequired[IntArray]
    second_per_grid: NotRequired[list[float]]
    audio_lengths: NotRequired[IntArray]
