"""transformers as the reference implementation: one case in, its greedy reply out.

Knows transformers and nothing of Omni: stored answers are evidence only if our own code had no
part in them. Cases run one at a time: in a batch, transformers shifts the end of shorter texts by
one row.

transformers' video processor needs torchvision, whose wheels for this torch are built for CUDA.
Without CUDA its Python part still imports once the two operators it extends are declared. Install
it apart, with `pip install --no-deps --target SOMEWHERE torchvision==0.28.0`, and put SOMEWHERE on
PYTHONPATH.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import media
from cases import Case, Reading
from expected import Reference


@functools.cache
def declare_torchvision_operators() -> None:
    """Let a CUDA build of torchvision be imported beside a CPU build of torch."""
    if not torch.cuda.is_available():
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


@dataclass
class Margins:
    """The smallest gap between what was chosen and what was not, per kind of choice.

    Float sums depend on the shape of a batch; a choice depends on the checkpoint alone only if its
    gap is far above that noise.
    """

    smallest: dict[str, float] = field(default_factory=dict)

    def see(self, kind: str, scores: torch.Tensor, chosen: int = 1) -> None:
        """Note the least gap, over rows, between the worst chosen score and the best other."""
        best = scores.detach().float().flatten(0, -2).topk(chosen + 1).values
        gap = (best[:, chosen - 1] - best[:, chosen]).min().item()
        self.smallest[kind] = min(gap, self.smallest.get(kind, float("inf")))


@dataclass
class Watcher:
    """A logits processor that looks on and changes nothing."""

    kind: str
    margins: Margins

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.margins.see(self.kind, scores)
        return scores


@dataclass
class Prescribed:
    """A logits processor that lets nothing be sampled but given tokens, one after the other."""

    token_ids: list[int]
    prompt_tokens: int

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self.token_ids[input_ids.shape[1] - self.prompt_tokens]
        only = torch.full_like(scores, float("-inf"))
        only[:, token] = 0.0
        return only


@dataclass
class Oracle:
    """The reference model and its processor."""

    model: Any
    processor: Any

    @classmethod
    def load(cls, checkpoint: str) -> Oracle:
        """Read a checkpoint in float32."""
        declare_torchvision_operators()
        from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32
        ).eval()
        # The Talker's position code reads its own audio_config, which no Talker config has: audio
        # beside images or video raises AttributeError (5.19 to 5.24) unless it is lent one.
        model.talker.config.audio_config = model.config.thinker_config.audio_config
        return cls(model, AutoProcessor.from_pretrained(checkpoint))

    def inputs(self, case: Case) -> dict[str, Any]:
        """Tensors for `generate`, from the case's own files."""
        size = {"shortest_edge": case.min_pixels, "longest_edge": case.max_pixels}
        messages = copy.deepcopy(list(case.messages))  # the template rewrites image_url parts
        text = self.processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return dict(
            self.processor(
                text=text,
                **media_arrays(case),
                images_kwargs={"size": size},
                videos_kwargs={
                    "size": size,
                    "fps": case.video_fps,
                    "cap_pixels_per_frame": False,
                    "use_audio_in_video": case.use_audio_in_video,
                },
                return_tensors="pt",
                padding=True,
            )
        )

    def answer(self, case: Case, margins: Margins) -> Reference:
        """Text ids, codes and waveform of the greedy reply; notes the margins of its choices."""
        inputs = self.inputs(case)
        watch = {
            "thinker_logits_processor": [Watcher("text", margins)],
            "talker_logits_processor": [Watcher("codec", margins)],
        }
        codes: list[torch.Tensor] = []
        with self._watched(margins, codes):
            ids = self.generate(inputs, case, return_audio=False, **watch)
            text_ids = ids[0, inputs["input_ids"].shape[1] :].numpy()
            if len(text_ids) == 1:  # with audio this raises: there is nothing to say
                groups = self.model.config.talker_config.num_code_groups
                return Reference(text_ids, np.zeros((groups, 0), np.int64), np.zeros(0, np.float32))
            _, wav = self.generate(inputs, case, return_audio=True, **watch)
        return Reference(text_ids, codes[0][0].numpy(), wav.flatten().numpy())

    def read_aloud(self, reading: Reading, margins: Margins) -> Reference:
        """Codes and waveform of a reply whose text is prescribed, and the ids of that text."""
        case = reading.as_reply()
        inputs = self.inputs(case)
        ids = self.processor.tokenizer(reading.text, add_special_tokens=False)["input_ids"]
        reply = [*ids, self.model.config.im_end_token_id]
        codes: list[torch.Tensor] = []
        with self._watched(margins, codes):
            _, wav = self.generate(
                inputs,
                case,
                return_audio=True,
                thinker_logits_processor=[Prescribed(reply, inputs["input_ids"].shape[1])],
                talker_logits_processor=[Watcher("codec", margins)],
            )
        return Reference(np.array(reply), codes[0][0].numpy(), wav.flatten().numpy())

    def generate(
        self, inputs: dict[str, Any], case: Case, *, return_audio: bool, **more: Any
    ) -> Any:
        """Greedy `generate`: the sequence, or (sequence, waveform) with `return_audio`."""
        return self.model.generate(
            **inputs,
            use_audio_in_video=case.use_audio_in_video,
            return_audio=return_audio,
            speaker=case.voice,
            thinker_max_new_tokens=case.text_max_tokens,
            thinker_eos_token_id=self.model.config.im_end_token_id,
            thinker_do_sample=False,
            talker_max_new_tokens=case.talker_max_tokens,
            talker_do_sample=False,
            **more,
        )

    @contextlib.contextmanager
    def _watched(self, margins: Margins, codes: list[torch.Tensor]) -> Iterator[None]:
        """Note residual codes' and experts' margins, and collect what code2wav is given."""

        def see_residual(module: Any, args: Any, logits: torch.Tensor) -> None:
            margins.see("residual", logits[:, -1])

        def see_router(module: Any, args: Any, outputs: Any) -> None:
            margins.see("expert", outputs[0], chosen=module.top_k)

        def see_codes(module: Any, args: tuple[torch.Tensor]) -> None:
            codes.append(args[0])

        with contextlib.ExitStack() as hooks:
            for head in self.model.talker.code_predictor.lm_head:
                hooks.enter_context(head.register_forward_hook(see_residual))
            for name, module in self.model.named_modules():
                if name.endswith(".mlp.gate"):
                    hooks.enter_context(module.register_forward_hook(see_router))
            hooks.enter_context(self.model.code2wav.register_forward_pre_hook(see_codes))
            yield


def media_arrays(case: Case) -> dict[str, list[Any]]:
    """The processor's media arguments, decoded from the case's data: URLs in prompt order."""
    arrays: dict[str, list[Any]] = {}
    parts = [
        part
        for message in case.messages
        if not isinstance(message["content"], str)
        for part in message["content"]
    ]
    for part in parts:
        match part["type"]:
            case "image_url":
                arrays.setdefault("images", []).append(media.read_png(_bytes(part)))
            case "input_audio":
                arrays.setdefault("audio", []).append(media.read_wav(_bytes(part)))
            case "video_url":
                arrays.setdefault("videos", []).append(media.read_frames(_bytes(part)))
                if case.use_audio_in_video:
                    arrays.setdefault("audio", []).append(media.read_sound(_bytes(part)))
    return arrays


def _bytes(part: Mapping[str, Any]) -> bytes:
    content = part[part["type"]]
    encoded = content["data"] if "data" in content else content["url"].partition(",")[2]
    return base64.b64decode(encoded)
