"""Damage to media files: what networks, disks and strangers do to bytes.

Every mutation is a function of a seeded generator, so a finding can be made again from its number.
Knows no formats.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

HEADER_BYTES = 512
INTERESTING = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
"""Numbers at which signs, widths and signed comparisons turn over."""

Mutation = Callable[[random.Random, bytearray, bytes], bytearray]


def mutated(number: int, data: bytes, other: bytes) -> bytes:
    """`data` after one to three mutations that `number` picks; `other` lends its pieces."""
    rng = random.Random(number)
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = rng.choice(MUTATIONS)(rng, found, other)
    return bytes(found)


def flip_bits(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    """1 to 64 bits anywhere."""
    for _ in range(1 << rng.randrange(7)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def edit_header(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    """A few bytes of the header, where formats, sizes and rates stand."""
    for _ in range(rng.randrange(1, 9)):
        if data:
            data[rng.randrange(min(HEADER_BYTES, len(data)))] = rng.choice(INTERESTING[:5])
    return data


def truncate(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    """Cut at any byte, often in the last tenth."""
    size = len(data)
    start = size - size // 10 if rng.random() < 0.5 else 0
    return data[: rng.randrange(start, size + 1)]


def splice(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    """The head of one file on the tail of another."""
    if not data or not other:
        return data
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def move_piece(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    """A piece is lost, doubled, blanked, or stands elsewhere."""
    size = len(data)
    start = rng.randrange(size + 1)
    piece = data[start : start + rng.randrange(1, max(2, size // 4))]
    end = start + len(piece)
    match rng.randrange(4):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:end] + piece + data[end:]
        case 2:
            return data[:start] + bytes(len(piece)) + data[end:]
        case _:
            place = rng.randrange(size + 1)
            return data[:place] + piece + data[place:]


def lie_about_length(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    """Overwrite what may be a length, a count or a dimension with a number that is not it."""
    order, (code, width) = rng.choice("<>"), rng.choice((("H", 2), ("I", 4), ("I", 4), ("Q", 8)))
    field = struct.Struct(order + code)
    candidates = [
        at
        for at in range(min(len(data) - width, 8 * HEADER_BYTES) + 1)
        if 0 < field.unpack_from(data, at)[0] <= 2 * len(data)
    ]
    if not candidates:
        return data
    lies = [*INTERESTING, rng.getrandbits(8 * width), len(data), len(data) + 1]
    field.pack_into(data, rng.choice(candidates), rng.choice(lies) % (1 << 8 * width))
    return data


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    edit_header,
    truncate,
    splice,
    move_piece,
    lie_about_length,
    lie_about_length,
)
