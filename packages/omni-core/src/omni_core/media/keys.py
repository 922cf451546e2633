"""Keys of media, and of the prompt rows they fill: what is equal has equal keys, and nothing else.

Knows bytes and integers. Knows nothing of decoding, prompts or caches.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from omni_core.types import IntArray

KEY_BYTES = 16
_SIGN = np.uint64(1 << 63)


def media_key(data: bytes, *facts: Any) -> bytes:
    """16 bytes that stand for an item's bytes together with `facts`, plain values that decide what
    is made of them. The same in every process."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"omni-media")
    described = msgspec.msgpack.encode(facts)
    digest.update(len(described).to_bytes(8, "little"))
    digest.update(described)
    digest.update(data)
    return digest.digest()


def item_row_keys(key: bytes, rows: int) -> IntArray:
    """(rows,) negative int64 for the rows of one item, 63 bits each drawn from key and place.

    The finaliser of SplitMix64 (Steele et al., 2014), applied once with each half of the key.
    """
    first, second = np.frombuffer(key, dtype="<u8")
    place = np.arange(1, rows + 1, dtype=np.uint64)
    mixed = _mix(_mix(first + place * np.uint64(0x9E3779B97F4A7C15)) ^ second)
    return (mixed | _SIGN).view(np.int64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
