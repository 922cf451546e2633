"""The tiny checkpoint is one that transformers reads, and the same bytes everywhere."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni_qwen3 import tiny
from omni_qwen3.tiny.tokenizer import ROLES, SPECIAL_TOKENS

SEED_0_SHA256 = "bf0f386371236ad30b5665a176943bdfdc4fc4b3efb959e2f745dd8b2373e08a"
"""Of all files and tensors. The stored parity references belong to exactly this checkpoint: when it
changes, calibrate again, write them again and put the new digest here."""


def digest(directory: str) -> str:
    sha = hashlib.sha256()
    for path in sorted(Path(directory).iterdir()):
        sha.update(path.name.encode())
        if path.suffix == ".safetensors":
            for name, tensor in sorted(load_file(path).items()):
                sha.update(name.encode() + tensor.tobytes())
        else:
            sha.update(path.read_bytes())
    return sha.hexdigest()


def test_transformers_finds_every_tensor_and_no_other(tiny_checkpoint: str) -> None:
    _, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, output_loading_info=True
    )
    assert not any(info.values()), info


def test_without_speech_transformers_finds_every_tensor_and_no_other(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    tiny.build_text(str(tmp_path))
    _, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        str(tmp_path), output_loading_info=True
    )
    assert not any(info.values()), info
    names = {name for path in tmp_path.glob("*.safetensors") for name in load_file(path)}
    assert names
    assert all(name.startswith("thinker.") for name in names)


def test_seed_0_is_the_checkpoint_of_the_stored_references(tiny_checkpoint: str) -> None:
    assert digest(tiny_checkpoint) == SEED_0_SHA256


def test_another_seed_is_another_model(tiny_checkpoint: str, tmp_path: Path) -> None:
    tiny.build(str(tmp_path), seed=1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {path.name for path in Path(tiny_checkpoint).iterdir()}
    assert digest(str(tmp_path)) != digest(tiny_checkpoint)


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: str) -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


def test_roles_and_special_tokens_are_one_token_each(tokenizer: AutoTokenizer) -> None:
    for text in (*ROLES, *SPECIAL_TOKENS):
        assert len(tokenizer(text)["input_ids"]) == 1, text
    ids = tokenizer("<|im_start|>assistant\n")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[1] == "assistant"


def test_text_survives_the_tokenizer(tokenizer: AutoTokenizer) -> None:
    text = "Hello, what do you see?\n  naïve 数字 123 🙂 don't"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_chat_template_marks_turns_and_media(tokenizer: AutoTokenizer) -> None:
    content = [{"type": "input_audio"}, {"type": "image_url"}, {"type": "text", "text": " Why? "}]
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>"
        "<|vision_start|><|image_pad|><|vision_end|> Why? <|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_building_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from omni_qwen3 import tiny; tiny.build(sys.argv[1]); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
