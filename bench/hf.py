"""transformers as the one to compare with: its model, its `generate`, one thread.

Knows transformers alone. Importing this takes seconds, so benches do it when they measure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Tokenizer
from transformers import Qwen3OmniMoeForConditionalGeneration as Model

NAME = "transformers generate"


@dataclass(slots=True)
class Spoken:
    """One reply of `generate`, in seconds since its start."""

    frames: int
    end_s: float
    talker_s: float
    """From the Talker's first forward to the vocoder's."""


@dataclass(slots=True)
class _Clock:
    """Notes when a module's forward first begins."""

    began: float | None = None

    def __call__(self, *_: Any) -> None:
        if self.began is None:
            self.began = time.perf_counter()


@dataclass(slots=True)
class Transformers:
    """A checkpoint in transformers' hands."""

    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, checkpoint: str) -> Transformers:
        """Read a checkpoint in float32."""
        model = Model.from_pretrained(checkpoint, dtype=torch.float32).eval()
        return cls(model, Qwen2Tokenizer.from_pretrained(checkpoint))

    @property
    def _end_token_id(self) -> int:
        token: int = self.model.config.im_end_token_id
        return token

    def prompt(self, text: str) -> torch.Tensor:
        """Ids (1, S) of one user turn."""
        turns = [{"role": "user", "content": text}]
        chat = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids: torch.Tensor = chat["input_ids"]
        return ids

    def text(self, prompts: torch.Tensor, tokens: int) -> float:
        """Seconds for `tokens` greedy tokens to each prompt of a batch (B, S)."""
        began = time.perf_counter()
        ids = self.model.thinker.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=self._end_token_id,
            pad_token_id=self._end_token_id,
        )
        assert ids.shape[1] == prompts.shape[1] + tokens
        return time.perf_counter() - began

    def speech(self, prompt: torch.Tensor, tokens: int, frames: int) -> Spoken:
        """One greedy spoken reply to a prompt (1, S)."""
        talker, vocoder = _Clock(), _Clock()
        hooks = [
            module.register_forward_pre_hook(clock)
            for module, clock in ((self.model.talker, talker), (self.model.code2wav, vocoder))
        ]
        began = time.perf_counter()
        _, audio = self.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            thinker_max_new_tokens=tokens,
            thinker_do_sample=False,
            thinker_eos_token_id=self._end_token_id,
            talker_max_new_tokens=frames + 1,  # the last one never becomes a frame
            talker_do_sample=False,
        )
        end_s = time.perf_counter() - began
        for hook in hooks:
            hook.remove()
        assert talker.began is not None
        assert vocoder.began is not None
        rate = self.model.code2wav.total_upsample
        return Spoken(round(audio.numel() / rate + 0.5), end_s, vocoder.began - talker.began)
