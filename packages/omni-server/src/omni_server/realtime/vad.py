"""How likely a moment of sound is speech: silero's small model, in onnxruntime.

Needs the `realtime` extra. The model comes with the silero-vad package, whose Python code (and the
torch that this imports) is not used. Knows windows of 512 samples at 16 kHz.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from omni_core.types import FloatArray
from omni_server.realtime.together import Together

RATE: Final = 16_000
WINDOW: Final = 512
_CONTEXT: Final = 64
"""Samples of the window before, which the model wants to see again."""
_PACKAGE: Final = "silero-vad"
_MODEL: Final = "silero_vad/data/silero_vad_16k_op15.onnx"
_HOW: Final = "turns are detected with what `pip install 'omni-server[realtime]'` brings"


class SpeechStream(Protocol):
    """One stream of sound."""

    def probability(self, window: FloatArray) -> float:
        """Of the next window (512,), in 0 to 1; one thread at a time."""


class SpeechModel(Protocol):
    """What tells speech in many streams."""

    def stream(self) -> SpeechStream:
        """A new one."""


def missing() -> str | None:
    """Why there is no model here; None if there is."""
    if util.find_spec("onnxruntime") is None or _model_file() is None:
        return _HOW
    return None


class SileroModel:
    """The model, loaded once."""

    def __init__(self) -> None:
        import onnxruntime  # an optional part, and 60 MB of memory where nobody speaks

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session: Any = onnxruntime.InferenceSession(
            str(_model_file()), options, providers=["CPUExecutionProvider"]
        )

    def stream(self) -> SpeechStream:
        """See `SpeechModel`."""
        return _SileroStream(self.session)


class _SileroStream:
    def __init__(self, session: Any) -> None:
        self._session = session
        self._state = np.zeros((2, 1, 128), np.float32)
        self._input = np.zeros((1, _CONTEXT + WINDOW), np.float32)
        self._rate = np.array(RATE, np.int64)

    def probability(self, window: FloatArray) -> float:
        self._input[0, :_CONTEXT] = self._input[0, -_CONTEXT:]
        self._input[0, _CONTEXT:] = window
        fed = {"input": self._input, "state": self._state, "sr": self._rate}
        likely, self._state = self._session.run(None, fed)
        return float(likely[0, 0])


def _model_file() -> Path | None:
    try:
        found = Path(str(metadata.distribution(_PACKAGE).locate_file(_MODEL)))
    except metadata.PackageNotFoundError:
        return None
    return found if found.is_file() else None


class Detection:
    """The speech model of one server, loaded when the first session wants it, and its thread."""

    def __init__(
        self, load: Callable[[], SpeechModel] = SileroModel, why_not: str | None = None
    ) -> None:
        """`why_not` says why there is none."""
        self.why_not = why_not
        self.threads = Together("omni-vad")
        self._load = load
        self._lock = asyncio.Lock()
        self._model: SpeechModel | None = None

    @classmethod
    def here(cls) -> Detection:
        """With silero's model, if that is installed."""
        return cls(why_not=missing())

    async def model(self) -> SpeechModel | None:
        """The model, None if there is none."""
        if self.why_not is not None:
            return None
        async with self._lock:
            if self._model is None:
                self._model = await self.threads.run(self._load)
        return self._model

    def close(self) -> None:
        """End the thread."""
        self.threads.close()
