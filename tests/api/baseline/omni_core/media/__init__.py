__all__ = ['AUDIO_MEDIA_TYPES', 'LET_THROUGH', 'FrameChoice', 'MediaLimits', 'RequestBudget', 'SharedFetches', 'Timeline', 'VideoClip', 'decode_base64', 'encode_audio', 'fetch', 'load_audio', 'load_image', 'load_video', 'media_bytes', 'pcm16', 'sample_times', 'wav_bytes', 'wav_header']

def load_audio(data: bytes, limits: MediaLimits, *, sample_rate: int=16000, stop: Stop=never) -> FloatArray:
    ...

@dataclass(slots=True)
class RequestBudget:
    limits: MediaLimits
    clock: Callable[[], float] = time.monotonic
    n_bytes: int = field(default=0, init=False)
    pixels: int = field(default=0, init=False)
    audio_seconds: float = field(default=0.0, init=False)
    begun_s: float = field(init=False)

    def __post_init__(self) -> None:
        ...

    def fetching(self) -> MediaLimits:
        ...

    def decoding(self) -> MediaLimits:
        ...

    def add_bytes(self, n_bytes: int) -> None:
        ...

    def add_pixels(self, pixels: int) -> None:
        ...

    def add_audio(self, seconds: float) -> None:
        ...

def decode_base64(text: str, limits: MediaLimits) -> bytes:
    ...
AUDIO_MEDIA_TYPES = {'wav': 'audio/wav', 'pcm16': 'audio/pcm', 'flac': 'audio/flac', 'mp3': 'audio/mpeg', 'opus': 'audio/ogg', 'aac': 'audio/aac'}

def encode_audio(samples: FloatArray, sample_rate: int, fmt: str) -> bytes:
    ...

def pcm16(samples: FloatArray) -> bytes:
    ...

def wav_bytes(samples: FloatArray | npt.NDArray[np.int16], sample_rate: int) -> bytes:
    ...

def wav_header(sample_rate: int, n_samples: int | None) -> bytes:
    ...

def fetch(url: str, limits: MediaLimits, *, resolver: Resolver=system_resolver) -> bytes:
    ...

def media_bytes(part: MediaPart, limits: MediaLimits, *, resolver: Resolver=system_resolver) -> bytes:
    ...

def load_image(data: bytes, limits: MediaLimits) -> Image.Image:
    ...
LET_THROUGH = MediaLimits(max_pixels=(1 << 31) - 1, max_audio_seconds=float('inf'), max_video_seconds=float('inf'), max_frames=1 << 40, max_video_pixels=1 << 40, decode_timeout_s=float('inf'))

@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    max_bytes: int = 128 * _MIB
    max_pixels: int = 64000000
    max_audio_seconds: float = 2400.0
    max_video_seconds: float = 3600.0
    max_frames: int = 768
    max_video_pixels: int = 512000000
    fetch_timeout_s: float = 20.0
    decode_timeout_s: float = 300.0
    request_max_bytes: int = 512 * _MIB
    request_max_pixels: int = 512000000
    request_max_audio_seconds: float = 7200.0
    request_fetch_timeout_s: float = 60.0
    max_redirects: int = 5
    allowed_hosts: tuple[str, ...] | None = None
    allow_private_addresses: bool = False
    allowed_media_dir: str | None = None

class SharedFetches:

    def __init__(self, *, held_bytes: int=HELD_BYTES, fetch: Fetch=media_bytes) -> None:
        ...

    def bytes_of(self, part: MediaPart, limits: MediaLimits) -> bytes:
        ...
FrameChoice: TypeAlias = Callable[[Timeline, float, int], list[int]]

@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    times: tuple[int, ...]
    tick_s: Fraction
    duration: Fraction
    has_times: bool
    group_of: dict[int, int]
    group_starts: tuple[int, ...]

    @property
    def duration_s(self) -> float:
        ...

    @classmethod
    def from_packets(cls, packets: Iterable[TimedPacket], *, tick_s: Fraction, nominal_fps: Fraction | None) -> Timeline:
        ...

    def starts_group(self, number: int, is_keyframe: bool) -> bool:
        ...

    def groups_for(self, wanted: Iterable[int]) -> set[int]:
        ...

    def time_of(self, pts: int | None, number: int) -> int | None:
        ...

def sample_times(timeline: Timeline, fps: float, max_frames: int) -> list[int]:
    ...

@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoClip:
    frames: Frames
    fps: float
    duration_s: float
    audio: FloatArray | None

def load_video(data: bytes, limits: MediaLimits, *, fps: float, max_frames: int, with_audio: bool, sample_rate: int=16000, stop: Stop=never, choose: FrameChoice=sample_times) -> VideoClip:
    ...
