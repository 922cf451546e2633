"""Video files of many containers, each written here by a real encoder."""

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from threading import Thread
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.video.reformatter import ColorRange, Colorspace
from PIL import Image

from omni_core.errors import MediaError, RequestCancelledError, RequestError
from omni_core.media import MediaLimits, VideoClip, load_audio, load_video, wav_bytes

LIMITS = MediaLimits()
RNG = np.random.default_rng(0)

Frames = npt.NDArray[np.uint8]


def noise(n: int, height: int = 32, width: int = 48) -> Frames:
    return RNG.integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def greys(n: int, height: int = 32, width: int = 48) -> Frames:
    """Frame i is a flat grey of 8 * i, so that lossy codecs still tell frames apart."""
    levels = (8 * np.arange(n, dtype=np.uint8))[:, None, None, None]
    return np.broadcast_to(levels, (n, height, width, 3)).copy()


def shown(clip: VideoClip) -> list[int]:
    """Which of `greys` the clip holds."""
    return np.rint(clip.frames.mean((1, 2, 3)) / 8).astype(int).tolist()


def written(
    frames: Frames,
    fps: Fraction | int,
    fmt: str,
    codec: str,
    pix_fmt: str,
    *,
    times: Sequence[int] | None = None,
    sound: npt.NDArray[np.float32] | None = None,
    sound_codec: str = "pcm_s16le",
    muxer: dict[str, str] | None = None,
    encoder: dict[str, str] | None = None,
) -> bytes:
    """Encode through FFmpeg; `times` are presentation times in units of 1 / fps."""
    buffer = BytesIO()
    with av.open(buffer, "w", format=fmt, options=muxer or {}) as container:
        stream = container.add_stream(codec, rate=fps, options=encoder or {})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        track = sound is not None and container.add_stream(sound_codec, rate=16_000, layout="mono")
        for pixels, time in zip(frames, times or range(len(frames)), strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = time
            frame.time_base = 1 / Fraction(fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track:
            for start in range(0, len(sound), 1_024):
                block = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(sound[None, start : start + 1_024]), "fltp", "mono"
                )
                block.sample_rate, block.pts = 16_000, start
                container.mux(track.encode(block))
            container.mux(track.encode(None))
    return buffer.getvalue()


def load(data: bytes, fps: float, max_frames: int = 768, **kwargs: Any) -> VideoClip:
    return load_video(
        data, LIMITS, fps=fps, max_frames=max_frames, **{"with_audio": False, **kwargs}
    )


LOSSLESS = [
    ("matroska", "ffv1", "bgr0"),
    ("avi", "ffv1", "bgr0"),
    ("mov", "png", "rgb24"),
    ("avi", "rawvideo", "bgr24"),
    ("mp4", "libx264rgb", "rgb24"),
]
RGB = [case for case in LOSSLESS if case[1] in av.codecs_available]


@pytest.mark.parametrize(("fmt", "codec", "pix_fmt"), RGB)
@pytest.mark.parametrize("fps", [1, 2, 25, 30, Fraction(30_000, 1_001)])
def test_rgb_content_is_bit_exact_and_complete(
    fmt: str, codec: str, pix_fmt: str, fps: Fraction | int
) -> None:
    frames = noise(9)
    clip = load(written(frames, fps, fmt, codec, pix_fmt, encoder={"qp": "0"}), float(fps))
    np.testing.assert_array_equal(clip.frames, frames)
    assert clip.frames.dtype == np.uint8
    assert clip.fps == pytest.approx(float(fps), rel=1e-9)
    assert clip.duration_s == pytest.approx(9 / float(fps), rel=1e-9)
    assert clip.audio is None


LOSSY = [
    ("mp4", "libx264", {}),
    ("mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    ("matroska", "libx264", {}),
    ("mpegts", "libx264", {}),
    ("flv", "libx264", {}),
    ("webm", "libvpx-vp9", {}),
    ("webm", "libvpx", {}),
    ("avi", "mpeg4", {}),
    ("asf", "msmpeg4", {}),
    ("mp4", "libsvtav1", {}),
]


@pytest.mark.parametrize(("fmt", "codec", "muxer"), LOSSY)
def test_frames_are_found_in_every_container(fmt: str, codec: str, muxer: dict[str, str]) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"FFmpeg was built without {codec}")
    frames = greys(24, 64, 64)
    data = written(frames, 12, fmt, codec, "yuv420p", muxer=muxer, encoder={"g": "8", "b": "4M"})
    assert shown(load(data, 12)) == list(range(24))
    assert shown(load(data, 3)) == list(range(0, 24, 4))
    clip = load(data, 12, max_frames=5)
    assert shown(clip) == [0, 4, 9, 14, 19]
    assert clip.fps == pytest.approx(5 / 2.0, rel=2e-3)
    assert clip.duration_s == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize("encoder", [{"g": "6", "bf": "0"}, {"g": "6", "bf": "2"},
                                     {"g": "6", "bf": "2", "flags": "-cgop"},
                                     {"g": "300", "bf": "3"}])  # fmt: skip
def test_any_group_structure_gives_the_same_frames(encoder: dict[str, str]) -> None:
    frames = greys(30, 64, 64)
    data = written(frames, 10, "mp4", "libx264", "yuv420p", encoder=encoder)
    whole = load(data, 10).frames
    for count in (1, 2, 3, 7, 29):
        clip = load(data, 10, max_frames=count)
        expected = [int(i * 30 / count) for i in range(count)]
        assert shown(clip) == expected
        np.testing.assert_array_equal(clip.frames, whole[expected])


def test_groups_without_a_kept_frame_are_not_decoded() -> None:
    data = bytearray(written(greys(30), 10, "mov", "png", "rgb24"))
    signature = b"\x89PNG\r\n\x1a\n"
    at = -1
    for number in range(30):
        at = data.index(signature, at + 1)
        if number % 10:
            data[at] ^= 0xFF
    assert shown(load(bytes(data), 1)) == [0, 10, 20]
    with pytest.raises(MediaError, match="damaged"):
        load(bytes(data), 2)


@pytest.mark.parametrize("matrix", ["ITU709", "ITU601"])
@pytest.mark.parametrize("colour_range", [ColorRange.MPEG, ColorRange.JPEG])
def test_yuv_colours_follow_what_the_stream_says(matrix: str, colour_range: int) -> None:
    colours = np.zeros((32, 48, 3), np.uint8)
    colours[:, :16] = (200, 40, 40)
    colours[:, 16:] = (30, 60, 220)
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=2, options={"crf": "1"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv444p"
        stream.codec_context.colorspace = Colorspace[matrix]
        stream.codec_context.color_range = colour_range
        frame = av.VideoFrame.from_ndarray(colours, format="rgb24").reformat(
            format="yuv444p", dst_colorspace=matrix, dst_color_range=colour_range
        )
        frame.pts = 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    clip = load(buffer.getvalue(), 2)
    assert np.abs(clip.frames[0].astype(int) - colours).max() <= 3


@pytest.mark.parametrize("rate", [25, Fraction(30_000, 1_001)])
def test_two_a_second_are_the_frames_on_screen_then(rate: Fraction | int) -> None:
    """At rates that two does not divide as well: positions are made of the clip's own rate."""
    count = round(10 * rate)
    numbers = np.zeros((count, 16, 16, 3), np.uint8)
    numbers[..., 0], numbers[..., 1] = np.divmod(np.arange(count)[:, None, None], 256)
    clip = load(written(numbers, rate, "matroska", "ffv1", "bgr0"), 2)
    found = 256 * clip.frames[:, 0, 0, 0].astype(int) + clip.frames[:, 0, 0, 1]
    assert clip.duration_s == pytest.approx(count / rate, rel=1e-3)
    assert len(found) == 20
    assert clip.fps == pytest.approx(20 / clip.duration_s)
    shown_at_s = np.arange(20) / clip.fps
    np.testing.assert_array_equal(found, np.floor(shown_at_s * float(rate) + 1e-3))


def test_variable_frame_rate_shows_what_is_on_screen() -> None:
    times = [0, 1, 2, 10, 11, 20]  # tenths of a second
    data = written(greys(6), 10, "matroska", "ffv1", "bgr0", times=times)
    clip = load(data, 2)
    # 2.1 s and more, two a second: 0.0 0.5 1.0 1.5 (2.0)
    assert shown(clip)[:4] == [0, 2, 3, 4]
    assert clip.frames.shape[0] in (4, 5)
    assert clip.fps == pytest.approx(clip.frames.shape[0] / clip.duration_s)


def test_a_slower_source_repeats_its_frames() -> None:
    clip = load(written(greys(3), 1, "matroska", "ffv1", "bgr0"), 2)
    assert shown(clip) == [0, 0, 1, 1, 2, 2]
    assert clip.fps == pytest.approx(2.0)


@pytest.mark.parametrize(("fmt", "codec", "pix_fmt"), [*RGB, ("mp4", "libx264", "yuv420p")])
def test_single_frames(fmt: str, codec: str, pix_fmt: str) -> None:
    clip = load(written(greys(2)[1:], 2, fmt, codec, pix_fmt), 2)
    assert shown(clip) == [1]
    assert 0 < clip.duration_s <= 1
    assert clip.fps == pytest.approx(1 / clip.duration_s)


def test_gif() -> None:
    buffer = BytesIO()
    images = [Image.fromarray(frame) for frame in greys(8)]
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=250)
    clip = load(buffer.getvalue(), 4)
    np.testing.assert_array_equal(clip.frames, greys(8))
    assert clip.fps == pytest.approx(4.0)


def with_matrix(mp4: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """Set a, b, c, d of the track's transformation (ISO 14496-12, 8.3.2), 16.16 fixed point."""
    a, b, c, d = (value << 16 for value in matrix)
    at = mp4.index(b"tkhd") + 4 + 24 + 16
    return mp4[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + mp4[at + 36 :]


@pytest.mark.parametrize(
    ("matrix", "clockwise"),
    [((1, 0, 0, 1), 0), ((0, 1, -1, 0), 1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 3)],
)
def test_rotation_is_applied(matrix: tuple[int, int, int, int], clockwise: int) -> None:
    """(x, y) is shown at (ax + cy, bx + dy): a=d=0, b=1, c=-1 turns the picture clockwise."""
    frames = np.zeros((2, 32, 64, 3), np.uint8)
    frames[:, :16, :32] = 255
    plain = written(frames, 2, "mov", "png", "rgb24")
    clip = load(with_matrix(plain, matrix), 2)
    np.testing.assert_array_equal(clip.frames, np.rot90(frames, -clockwise, axes=(1, 2)))


@pytest.mark.parametrize(
    ("matrix", "shown_as"),
    [
        ((-1, 0, 0, 1), lambda frames: frames[:, :, ::-1]),
        ((1, 0, 0, -1), lambda frames: frames[:, ::-1]),
        ((0, 1, 1, 0), lambda frames: frames.transpose(0, 2, 1, 3)),
        ((0, -1, -1, 0), lambda frames: frames.transpose(0, 2, 1, 3)[:, ::-1, ::-1]),
    ],
    ids=["left to right", "upside down", "over one diagonal", "over the other"],
)
def test_mirroring_is_applied(
    matrix: tuple[int, int, int, int], shown_as: Callable[[Frames], Frames]
) -> None:
    """As cameras that face their user write it; no rotation does the same."""
    frames = noise(2)
    clip = load(with_matrix(written(frames, 2, "mov", "png", "rgb24"), matrix), 2)
    np.testing.assert_array_equal(clip.frames, shown_as(frames))


def tone(seconds: float) -> npt.NDArray[np.float32]:
    wave = np.sin(2 * np.pi * 440 * np.arange(round(seconds * 16_000)) / 16_000)
    return (np.rint(0.5 * wave * 32_768) / 32_768).astype(np.float32)


def test_sound_in_mkv_is_exact() -> None:
    sound = tone(2.0)
    data = written(greys(4), 2, "matroska", "ffv1", "bgr0", sound=sound)
    clip = load(data, 2, with_audio=True)
    assert shown(clip) == [0, 1, 2, 3]
    assert clip.audio is not None
    np.testing.assert_array_equal(clip.audio, sound)
    assert load(data, 2, with_audio=False).audio is None
    half = load(data, 2, with_audio=True, sample_rate=8_000)
    assert half.audio is not None
    assert half.audio.shape == (16_000,)


@pytest.mark.parametrize(
    ("fmt", "codec", "sound_codec"),
    [("mp4", "libx264", "aac"), ("mov", "libx264", "pcm_s16le"), ("webm", "libvpx", "libopus")],
)
def test_sound_of_common_files(fmt: str, codec: str, sound_codec: str) -> None:
    data = written(
        greys(4, 64, 64), 2, fmt, codec, "yuv420p", sound=tone(2.0), sound_codec=sound_codec
    )
    clip = load(data, 2, with_audio=True)
    assert shown(clip) == [0, 1, 2, 3]
    assert clip.audio is not None
    assert abs(len(clip.audio) - 32_000) <= 1_024
    assert clip.audio[4_000:28_000].std() == pytest.approx(0.5 / 2**0.5, rel=0.08)


@pytest.mark.parametrize("fmt", ["webm", "matroska"])
def test_a_recording_that_never_said_how_long_it_is(fmt: str) -> None:
    """As browsers record: no duration anywhere in the file."""
    options: dict[str, Any] = {"sound_codec": "libopus", "muxer": {"live": "1"}}
    data = written(greys(4, 64, 64), 2, fmt, "libvpx", "yuv420p", sound=tone(2.0), **options)
    with av.open(BytesIO(data)) as container:
        assert container.duration is None
        assert all(stream.duration is None for stream in container.streams)
    clip = load(data, 2, with_audio=True)
    assert shown(clip) == [0, 1, 2, 3]
    assert clip.duration_s == pytest.approx(2.0)
    assert clip.audio is not None
    assert len(clip.audio) == pytest.approx(32_000, abs=320)
    assert len(load_audio(data, LIMITS)) == len(clip.audio)
    brief = MediaLimits(max_video_seconds=1.9, max_audio_seconds=1.9)
    with pytest.raises(MediaError, match=r"video lasts longer than the limit of 1\.9 s"):
        load_video(data, brief, fps=2, max_frames=8, with_audio=True)
    with pytest.raises(MediaError, match=r"audio lasts longer than the limit of 1\.9 s"):
        load_audio(data, brief)


def test_no_sound_track_is_none() -> None:
    assert load(written(greys(4), 2, "matroska", "ffv1", "bgr0"), 2, with_audio=True).audio is None


def test_limits() -> None:
    data = written(greys(8), 2, "matroska", "ffv1", "bgr0", sound=tone(4.0))
    options: dict[str, Any] = {"fps": 2, "max_frames": 768, "with_audio": True}
    frame = 32 * 48
    assert shown(load_video(data, MediaLimits(max_frames=4), **options)) == [0, 2, 4, 6]
    enough = MediaLimits(max_pixels=frame, max_video_pixels=8 * frame, max_video_seconds=4)
    assert shown(load_video(data, enough, **options)) == list(range(8))
    for limits, words in [
        (MediaLimits(max_pixels=frame - 1), f"more than {frame - 1} pixels per frame"),
        (MediaLimits(max_video_pixels=8 * frame - 1), "8 frames of 48x32 are more than"),
        (MediaLimits(max_video_seconds=3.9), r"video lasts longer than the limit of 3\.9 s"),
    ]:
        with pytest.raises(MediaError, match=words):
            load_video(data, limits, **options)


@pytest.mark.parametrize("with_audio", [False, True])
def test_decoding_stops_at_any_packet_when_nobody_waits(with_audio: bool) -> None:
    data = written(greys(8), 2, "matroska", "ffv1", "bgr0", sound=tone(4.0))
    asked: list[int] = []

    def load_until(at: int) -> None:
        asked.clear()

        def stop() -> bool:
            asked.append(at)
            return len(asked) > at

        load(data, 2, with_audio=with_audio, stop=stop)

    load_until(1_000_000)
    times = len(asked)
    assert times >= 8 + 8 + with_audio, "pictures when they are found and when they are decoded"
    for at in range(times):
        with pytest.raises(RequestCancelledError, match="Nobody waits"):
            load_until(at)
        assert len(asked) == at + 1


def test_decoding_has_an_end() -> None:
    """Of pictures and of the sound: none of a long group of pictures has to be the last."""
    data = written(greys(8), 2, "matroska", "ffv1", "bgr0", sound=tone(4.0))
    with pytest.raises(MediaError, match="Decoding the video took longer than the 0 s"):
        load_video(data, MediaLimits(decode_timeout_s=0), fps=2, max_frames=8, with_audio=False)


def test_senseless_sampling_is_refused() -> None:
    data = written(greys(2), 2, "matroska", "ffv1", "bgr0")
    for fps, max_frames, param in [
        (0.0, 8, "video_fps"),
        (-1.0, 8, "video_fps"),
        (float("nan"), 8, "video_fps"),
        (2.0, 0, "video_max_frames"),
    ]:
        with pytest.raises(RequestError) as caught:
            load(data, fps, max_frames)
        assert caught.value.param == param


def test_an_enormous_rate_is_capped() -> None:
    clip = load(written(greys(4), 2, "matroska", "ffv1", "bgr0"), 1e9, max_frames=8)
    assert shown(clip) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_is_no_video() -> None:
    mp4 = written(greys(8, 64, 64), 2, "mp4", "libx264", "yuv420p")
    for data, words in [
        (b"", "damaged or in a format"),
        (b"hello", "damaged or in a format"),
        (RNG.bytes(10_000), "damaged or in a format|no video track"),
        (mp4[: len(mp4) // 2], "damaged or in a format|no video track"),
        (wav_bytes(tone(0.5), 16_000), "no video track"),
    ]:
        with pytest.raises(MediaError, match=words):
            load(data, 2)


def test_a_file_cut_at_its_end_gives_the_frames_it_has() -> None:
    frames = noise(8)
    data = written(frames, 2, "matroska", "ffv1", "bgr0")
    clip = load(data[: int(len(data) * 0.6)], 2)
    assert 3 <= len(clip.frames) <= 5
    np.testing.assert_array_equal(clip.frames[:-1], frames[: len(clip.frames) - 1])


def test_playlists_open_nothing() -> None:
    """FFmpeg's playlist formats would fetch what they name, past every guard."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/inner.ts"
        playlists = [
            f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{url}\n#EXT-X-ENDLIST\n",
            f"ffconcat version 1.0\nfile '{url}'\n",
            f'<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><BaseURL>{url}'
            "</BaseURL></Period></MPD>",
            "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
        ]
        for text in playlists:
            with pytest.raises(MediaError):
                load(text.encode(), 2)
        server.shutdown()
        thread.join()
    assert asked == []


def test_flipped_bytes_never_escape_as_other_errors() -> None:
    """Every decoder either copes with damage or raises MediaError."""
    outcomes = {True: 0, False: 0}
    files = [
        written(greys(6, 32, 32), 2, "mp4", "libx264", "yuv420p", sound=tone(1), sound_codec="aac"),
        written(greys(6), 2, "matroska", "ffv1", "bgr0", sound=tone(1)),
        written(greys(6), 2, "avi", "mpeg4", "yuv420p"),
    ]
    limits = MediaLimits(max_pixels=100_000, max_video_pixels=1_000_000)
    for data in files:
        for _ in range(40):
            damaged = bytearray(data)
            for position in RNG.integers(0, len(data), 6):
                damaged[position] = RNG.integers(0, 256)
            try:
                load_video(bytes(damaged), limits, fps=2, max_frames=8, with_audio=True)
            except MediaError:
                outcomes[False] += 1
            else:
                outcomes[True] += 1
    assert min(outcomes.values()) > 5
