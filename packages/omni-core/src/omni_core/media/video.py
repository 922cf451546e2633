"""Video: bytes in, RGB frames at a steady rate and the sound track out.

Knows demuxing order, presentation times, rotation and mirroring. Does not resize: that is a
model's. Frames that are not kept are converted never, and decoded only where a kept frame depends
on them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import av
import numpy as np
import numpy.typing as npt

from omni_core.errors import MediaError, RequestError
from omni_core.media.audio import decode_audio
from omni_core.media.container import open_container
from omni_core.media.limits import MediaLimits
from omni_core.media.patience import Patience, Stop, never
from omni_core.media.timeline import FrameChoice, Timeline, sample_times
from omni_core.types import FloatArray

Frames: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoClip:
    """A sampled video."""

    frames: Frames
    """uint8 (T, H, W, 3) RGB, upright."""
    fps: float
    """Rate of `frames`: T divided by `duration_s`."""
    duration_s: float
    """Of the picture, not of the container."""
    audio: FloatArray | None
    """float32 (n,) mono; None without a sound track or when it was not asked for."""


def load_video(
    data: bytes,
    limits: MediaLimits,
    *,
    fps: float,
    max_frames: int,
    with_audio: bool,
    sample_rate: int = 16_000,
    stop: Stop = never,
    choose: FrameChoice = sample_times,
) -> VideoClip:
    """Decode the frames on screen at even times, `fps` a second but at most `max_frames`; a model
    that samples otherwise says so by `choose`.

    A clip of N frames at f frames per second sampled at f yields exactly those N frames; sources
    stored as RGB come out bit-exact. A longer clip than `max_frames` allows is sampled evenly over
    all of it, and the result's `fps` says how densely. The sound track, at `sample_rate` Hz,
    starts with its own first sample. Raises MediaError for what cannot be decoded or is over
    `limits`, RequestError for a rate or a count below what makes sense, and RequestCancelledError
    once `stop` says so.
    """
    if not fps > 0:
        raise RequestError("video_fps must be above 0.", param="video_fps")
    if max_frames < 1:
        raise RequestError("video_max_frames must be at least 1.", param="video_max_frames")
    patience = Patience(limits.decode_timeout_s, "video", stop)
    timeline = _scan(data, limits, patience)
    wanted = choose(timeline, fps, min(max_frames, limits.max_frames))
    frames = _decode(data, timeline, wanted, limits, patience)
    sound = None
    if with_audio:
        sound = decode_audio(data, limits.max_video_seconds, sample_rate, patience)
    return VideoClip(
        frames=frames,
        fps=len(wanted) / timeline.duration_s,
        duration_s=timeline.duration_s,
        audio=sound if sound is not None and sound.size else None,
    )


def _scan(data: bytes, limits: MediaLimits, patience: Patience) -> Timeline:
    """Read when frames are shown from the packets, which needs no index and no decoding."""
    with open_container(data, "video") as container:
        stream = _picture_stream(container)
        _check_pixels(stream.codec_context.width, stream.codec_context.height, limits)
        timeline = Timeline.from_packets(
            _packets(container, stream, patience),
            tick_s=stream.time_base,
            nominal_fps=stream.average_rate,
        )
    if timeline.duration_s > limits.max_video_seconds:
        raise MediaError(
            f"The video lasts longer than the limit of {limits.max_video_seconds:g} s; cut it."
        )
    return timeline


def _packets(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, patience: Patience
) -> Iterator[av.Packet]:
    """Those that hold something, while there is patience for them."""
    for packet in container.demux(stream):
        patience.check()
        if packet.size:
            yield packet


def _picture_stream(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    for stream in container.streams.video:
        if stream.disposition & av.stream.Disposition.attached_pic:
            continue  # the cover of a song
        if stream.codec_context is None:
            raise MediaError("The video uses a codec that cannot be decoded here.")
        return stream
    raise MediaError("The file has no video track.")


def _check_pixels(width: int, height: int, limits: MediaLimits) -> None:
    if width * height > limits.max_pixels:
        raise MediaError(
            f"The video has more than {limits.max_pixels} pixels per frame, the limit; "
            "scale it down."
        )


def _decode(
    data: bytes, timeline: Timeline, wanted: list[int], limits: MediaLimits, patience: Patience
) -> Frames:
    """The frames shown at the `wanted` times (sorted, repeats allowed), (T, H, W, 3)."""
    kept: Frames | None = None
    done = 0
    with open_container(data, "video") as container:
        for time, frame in _frames(container, timeline, set(wanted), limits, patience):
            if time < wanted[done]:
                continue
            if kept is None:
                kept = _allocate(frame, len(wanted), limits)
            picture = _upright_rgb(frame, kept.shape[1:3])
            while done < len(wanted) and wanted[done] <= time:
                kept[done] = picture
                done += 1
            if done == len(wanted):
                return kept
    if kept is None:
        raise MediaError("No frame of the video can be decoded.")
    kept[done:] = kept[done - 1]  # packets at the end that hold no whole frame
    return kept


def _frames(
    container: av.container.InputContainer,
    timeline: Timeline,
    wanted: set[int],
    limits: MediaLimits,
    patience: Patience,
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Frames with their times, in order, of the groups of pictures that `wanted` needs."""
    stream = _picture_stream(container)
    codec = stream.codec_context
    # A stream may grow midway; FFmpeg counts lines padded for alignment.
    padded_pixels = (codec.width + 128) * (codec.height + 128)
    codec.options = {"max_pixels": str(max(limits.max_pixels, padded_pixels))}
    needed = timeline.groups_for(wanted)
    group = 0
    running = False
    decoded = 0
    for number, packet in enumerate(_packets(container, stream, patience)):
        group += timeline.starts_group(number, packet.is_keyframe)
        if group in needed:
            running = True
            frames = packet.decode()
        elif running:
            running = False
            frames = stream.codec_context.decode(None)
            stream.codec_context.flush_buffers()
        else:
            continue
        for frame in frames:
            if (time := timeline.time_of(frame.pts, decoded)) is not None:
                yield time, frame
            decoded += 1
    if running:
        for frame in stream.codec_context.decode(None):
            if (time := timeline.time_of(frame.pts, decoded)) is not None:
                yield time, frame
            decoded += 1


def _allocate(frame: av.VideoFrame, n_frames: int, limits: MediaLimits) -> Frames:
    if n_frames * frame.width * frame.height > limits.max_video_pixels:
        raise MediaError(
            f"{n_frames} frames of {frame.width}x{frame.height} are more than the limit of "
            f"{limits.max_video_pixels} pixels per video; lower video_fps or video_max_frames, "
            "or send a smaller picture."
        )
    height, width = frame.height, frame.width
    if _Turn.of(frame).sideways:
        height, width = width, height
    return np.empty((n_frames, height, width, 3), np.uint8)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a player does to a stored picture before it shows it; in this order."""

    sideways: bool = False
    """Rows become columns."""
    mirrored: bool = False
    upside_down: bool = False

    @classmethod
    def of(cls, frame: av.VideoFrame) -> _Turn:
        """As the file's display matrix says: (x, y) is shown at (ax + cy, bx + dy)."""
        matrix = frame.side_data.get("DISPLAYMATRIX")
        if matrix is None:
            return cls()
        a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
        if abs(a) + abs(d) >= abs(b) + abs(c):
            return cls(False, a < 0, d < 0)
        return cls(True, c < 0, b < 0)

    def applied(self, pixels: Frames) -> Frames:
        """(H, W, 3) as it is shown."""
        turned = pixels.transpose(1, 0, 2) if self.sideways else pixels
        return turned[:: -1 if self.upside_down else 1, :: -1 if self.mirrored else 1]


def _upright_rgb(frame: av.VideoFrame, size: tuple[int, ...]) -> Frames:
    """One frame as (H, W, 3) of the clip's `size`, which a stream may leave midway."""
    height, width = size
    turn = _Turn.of(frame)
    if turn.sideways:
        height, width = width, height
    return turn.applied(frame.to_ndarray(format="rgb24", width=width, height=height))
