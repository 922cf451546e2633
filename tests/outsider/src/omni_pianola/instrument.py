"""The checkpoint: a config.json that says how an instrument is tuned."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from omni_core.errors import ConfigError
from omni_core.specs import ModelInfo

NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
MAX_LETTERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One player piano."""

    sample_rate: int = 16_000
    frame_ms: int = 5
    frames_per_letter: int = 40
    scale: tuple[int, ...] = (60, 62, 64, 65, 67, 69, 71, 72)
    """MIDI numbers of the notes in use."""

    @property
    def samples_per_frame(self) -> int:
        """Samples of one column of the roll."""
        return self.sample_rate * self.frame_ms // 1000

    def note(self, letter: str) -> int:
        """The MIDI number a letter is played as."""
        return self.scale[ord(letter) % len(self.scale)]


def name_of(note: int) -> str:
    """A MIDI number as musicians write it: 60 is C4."""
    return f"{NAMES[note % 12]}{note // 12 - 1}"


def read(model_path: str) -> Instrument:
    """The instrument of a checkpoint directory."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    config.pop("architectures")
    try:
        return Instrument(**config | {"scale": tuple(config["scale"])})
    except (KeyError, TypeError) as exc:
        raise ConfigError(f"{model_path}/config.json is not a pianola's: {exc}") from exc


def write(directory: str, seed: int) -> None:
    """A checkpoint; the seed transposes it by up to an octave."""
    scale = tuple(note + seed % 12 for note in Instrument().scale)
    config = {"architectures": ["Pianola"], **asdict(Instrument(scale=scale))}
    (Path(directory) / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def describe(model_path: str) -> ModelInfo:
    """What a server must know: the longest text, the one voice and the sample rate."""
    return ModelInfo(
        context_length=MAX_LETTERS,
        voices=("upright",),
        default_voice="upright",
        sample_rate=read(model_path).sample_rate,
    )
