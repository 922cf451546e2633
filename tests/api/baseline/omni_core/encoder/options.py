from __future__ import annotations
from typing import Final, TypeVar
CACHE_ENTRIES = 'cache_entries'
DEFAULT_ENTRIES = 64
AR_OPTIONS: Final = dict.fromkeys(('max_running', 'max_batch_tokens', 'prefill_chunk', 'kv_budget_bytes', 'prefix_cache', 'lookahead', 'coalesce_ms'))
ENCODER_OPTIONS: Final = ('activation_budget_bytes', CACHE_ENTRIES, 'cache_bytes')
MEDIA_OPTIONS: Final = dict.fromkeys(('max_bytes', 'max_pixels', 'max_audio_seconds', 'max_video_seconds', 'max_frames', 'max_video_pixels', 'decode_timeout_s', 'request_max_bytes', 'request_max_pixels', 'request_max_audio_seconds', 'request_fetch_timeout_s', 'fetch_timeout_s', 'max_redirects', 'allowed_hosts', 'allow_private_addresses', 'allowed_media_dir', CACHE_ENTRIES))
T = TypeVar('T', int, None)

def whole_number(stage: StageConfig, name: str, default: T, *, least: int=1) -> int | T:
    ...
