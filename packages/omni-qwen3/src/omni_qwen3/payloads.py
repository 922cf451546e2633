"""What the stages of Qwen3-Omni hand each other: one dict per edge, all keys listed here.

S prompt tokens · P visual patches · H Thinker hidden size · G code groups · arrays are numpy where
made by preprocessing and torch where made by a model. A key that does not apply is absent.

preprocessing -> image_encoder, audio_encoder, mm_aggregate (`Prompt`)
mm_aggregate -> thinker (`Prepared`)
thinker -> decode (`ReplyStart`), then chunks `TokenChunk`
thinker -> talker_ar (`Conditioning`), then chunks `{"rows": (n, H)}`, the input embeddings of
spoken tokens
talker_ar -> code2wav: `{}`, then chunks int64 (G, frames)
"""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from omni_core.types import FloatArray, IntArray

ByteArray: TypeAlias = npt.NDArray[np.uint8]


class Visual(TypedDict):
    """The images (or videos) of a prompt, in message order.

    Of an item that preprocessing has met before there are no patches: most likely the encoder has
    in its cache what it makes of them, and else it reads `encoded` again.
    """

    pixel_values: list[FloatArray | None]
    """Per item (P, 3 * temporal_patch * patch * patch)."""
    encoded: list[ByteArray | None]
    """Per item (n,), its file; None where there are patches."""
    grid_thw: IntArray
    """(items, 3): temporal, height and width in patches, before merging."""
    params: list[str]
    """What an error about each item names."""
    keys: list[bytes]
    """Per item, equal for equal patches only (see `omni_core.media.keys.media_key`)."""
    rows: IntArray
    """(N,) rows of the prompt that the merged patches replace, ascending."""
    row_keys: IntArray
    """(N,) see `omni_core.media.keys.item_row_keys`."""
    second_per_grid: NotRequired[list[float]]
    """Videos only: seconds between two temporal patches, per item."""
    fps: NotRequired[float]
    """Videos only: how densely frames are sampled, and how many at most."""
    max_frames: NotRequired[int]


class Audio(TypedDict):
    """The audio clips of a prompt as log-mel frames, in message order; see `Visual` on those met
    before."""

    input_features: list[FloatArray | None]
    """Per clip (mel_bins, frames)."""
    encoded: list[ByteArray | None]
    """Per clip (n,), its file; None where there are frames."""
    padded_samples: int
    """Length to which all clips are padded with silence before the spectrogram."""
    lengths: IntArray
    """(items,) frames of each clip."""
    params: list[str]
    keys: list[bytes]
    rows: IntArray
    """(N,) rows of the prompt that the encoded clips replace, ascending."""
    row_keys: IntArray


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
    spoken_ids: NotRequired[IntArray]
    """(n,) tokens of a text to read aloud: they are the reply, and nothing is to be computed."""
    tool_use: NotRequired[bytes]
    """msgpack of the `ToolUse`; absent where nothing may be called."""
    raw: NotRequired[bool]
    """No template is around it, and all of the reply is text as it is."""


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
    media_row_keys: NotRequired[IntArray]
    """(M,) what `rowkeys.row_keys` puts at these rows."""
    visual_index: NotRequired[IntArray]
    """(V,) rows that get deepstack features added."""
    deepstack: NotRequired[Any]
    """(levels, V, H): level i is added to the output of decoder layer i."""
    image_grid_thw: NotRequired[IntArray]
    video_grid_thw: NotRequired[IntArray]
    second_per_grid: NotRequired[list[float]]
    audio_lengths: NotRequired[IntArray]
    spoken_ids: NotRequired[IntArray]
    """See `Prompt`."""
    tool_use: NotRequired[bytes]
    """See `Prompt`."""
    raw: NotRequired[bool]
    """See `Prompt`."""


class Conditioning(TypedDict):
    """The Talker's prompt, in Thinker space (see the reference in `talker`)."""

    speak: bool
    """False when the reply is over and had nothing to say; then no other key is present."""
    user_ids: NotRequired[IntArray]
    """(U,) token ids of all user turns."""
    user_rows: NotRequired[Any]
    """(U, H): input embedding at text positions, `accept_hidden_layer` state at media positions."""
    user_is_media: NotRequired[Any]
    """Bool (U,)."""
    assistant_rows: NotRequired[Any]
    """(3, H) input embeddings of <|im_start|>, assistant and the newline of the last turn."""
    reading: NotRequired[int]
    """Tokens of the text, where all of it is known: it is read aloud."""
    image_grid_thw: NotRequired[IntArray]
    video_grid_thw: NotRequired[IntArray]
    second_per_grid: NotRequired[list[float]]
    audio_lengths: NotRequired[IntArray]
