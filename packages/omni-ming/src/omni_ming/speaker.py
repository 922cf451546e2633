"""Who speaks in a reference: CAM++'s embedding of a voice, by the checkpoint's ONNX file.

Needs onnxruntime and kaldi-native-fbank (`omni-ming[voices]`).
"""

from __future__ import annotations

import importlib
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from omni_core.errors import ConfigError
from omni_core.types import FloatArray

if TYPE_CHECKING:
    import onnxruntime

FILE = "talker/campplus.onnx"
SAMPLE_RATE = 16_000
BANDS = 80
NEEDED = "install omni-ming[voices] (onnxruntime and kaldi-native-fbank)"


class SpeakerEncoder:
    """The network of one checkpoint, loaded when first needed."""

    def __init__(self, model_path: str) -> None:
        self._path = Path(model_path) / FILE

    @property
    def available(self) -> bool:
        """Whether the checkpoint has the file."""
        return self._path.is_file()

    def __call__(self, sound: FloatArray) -> FloatArray:
        """Mono sound (n,) at 16 kHz, of 25 ms at least, to the embedding (192,)."""
        features = speaker_features(sound)
        name = self._session.get_inputs()[0].name
        [embedding, *_] = self._session.run(None, {name: features[None]})
        flat: FloatArray = np.asarray(embedding, dtype=np.float32).reshape(-1)
        return flat

    def load(self) -> None:
        """Load it now, if the checkpoint has it; ConfigError where what it needs is missing."""
        if self.available:
            _ = self._session, _kaldi()

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        try:
            import onnxruntime
        except ImportError as exc:
            raise ConfigError(f"voices of this checkpoint need an embedding; {NEEDED}") from exc
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(str(self._path), options)


def speaker_features(sound: FloatArray) -> FloatArray:
    """Kaldi's log-mel filter banks (frames, 80) without dither, less their mean over time."""
    knf = _kaldi()
    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.samp_freq = SAMPLE_RATE
    options.mel_opts.num_bins = BANDS
    banks = knf.OnlineFbank(options)
    banks.accept_waveform(SAMPLE_RATE, sound.tolist())
    banks.input_finished()
    frames = [banks.get_frame(index) for index in range(banks.num_frames_ready)]
    features = np.stack(frames).astype(np.float32)
    centred: FloatArray = features - features.mean(axis=0)
    return centred


def _kaldi() -> ModuleType:
    try:
        return importlib.import_module("kaldi_native_fbank")
    except ImportError as exc:
        raise ConfigError(f"voices of this checkpoint need an embedding; {NEEDED}") from exc
