"""Who speaks in a reference: CAM++'s embedding of a voice, by the checkpoint's ONNX file."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from omni_core.types import FloatArray
from omni_ming.defaults import SPEAKER_RATE, SPEAKERS

if TYPE_CHECKING:
    import onnxruntime

BANDS = 80


class SpeakerEncoder:
    """The network of one checkpoint, loaded when first needed."""

    def __init__(self, model_path: str) -> None:
        self._path = Path(model_path) / SPEAKERS

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

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        import onnxruntime  # here: most processes of a pipeline need none

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(str(self._path), options)


def speaker_features(sound: FloatArray) -> FloatArray:
    """Kaldi's log-mel filter banks (frames, 80) without dither, less their mean over time."""
    import kaldi_native_fbank as knf

    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.frame_opts.samp_freq = SPEAKER_RATE
    options.mel_opts.num_bins = BANDS
    banks = knf.OnlineFbank(options)
    banks.accept_waveform(SPEAKER_RATE, sound.tolist())
    banks.input_finished()
    frames = [banks.get_frame(index) for index in range(banks.num_frames_ready)]
    features = np.stack(frames).astype(np.float32)
    centred: FloatArray = features - features.mean(axis=0)
    return centred
