"""Tokenizer and chat template from the files of a checkpoint, in each of the forms they come in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Tokenizer

from omni_core.errors import ConfigError, RequestError
from omni_core.text.template import ChatTemplate
from omni_qwen3.preprocess.tokenizer import TextTokenizer

TEXT = "We're 12 years — in  São Paulo,\tisn't it? \n\n e\u0301 日本語 🙂 <tool_call>x"


def legacy_files(checkpoint: str, directory: Path) -> Path:
    """The tokenizer as vocab.json, merges.txt and tokenizer_config.json, as on the hub."""
    tokenizer = json.loads((Path(checkpoint) / "tokenizer.json").read_text())
    config = json.loads((Path(checkpoint) / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(t.pop("id")): t for t in tokenizer["added_tokens"]}
    merges = "".join(f"{left} {right}\n" for left, right in tokenizer["model"]["merges"])
    (directory / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_both_forms_of_the_files_give_transformers_ids(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    expected = Qwen2Tokenizer.from_pretrained(tiny_checkpoint).encode(TEXT)
    single = TextTokenizer(tiny_checkpoint)
    pair = TextTokenizer(str(legacy_files(tiny_checkpoint, tmp_path)))
    assert single.encode(TEXT) == pair.encode(TEXT) == expected
    assert single.special == pair.special
    assert single.named == pair.named


def test_missing_merges_are_named(tiny_checkpoint: str, tmp_path: Path) -> None:
    legacy_files(tiny_checkpoint, tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ConfigError, match=r"neither tokenizer\.json nor merges\.txt"):
        TextTokenizer(str(tmp_path))


def test_an_added_token_out_of_order_is_refused(tiny_checkpoint: str, tmp_path: Path) -> None:
    tokenizer = json.loads((Path(tiny_checkpoint) / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["id"] += 1000
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(Path(tiny_checkpoint) / "tokenizer_config.json", tmp_path)
    with pytest.raises(ConfigError, match="not the next free one"):
        TextTokenizer(str(tmp_path))


TEMPLATE = """
{%- for message in messages %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
    {{ message.role }}: {{ message | tojson }}
{% endfor %}
{{ eos_token }}{% if add_generation_prompt and not tools %}assistant{% endif %}
"""
TURNS = [
    {"role": "user", "content": "<é> & 'so'"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "never seen"},
]


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template_renders_as_in_transformers(
    tiny_checkpoint: str, tmp_path: Path, place: str
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny_checkpoint) / name, tmp_path)
    put_template(tmp_path, place, TEMPLATE)
    tokenizer = Qwen2Tokenizer.from_pretrained(str(tmp_path))
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(str(tmp_path), {"eos_token": "<|im_end|>"}).render(TURNS) == expected


def put_template(directory: Path, place: str, template: str) -> None:
    path = directory / place
    if path.suffix == ".jinja":
        path.write_text(template)
        return
    config: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "chat_template": template}))


@pytest.mark.parametrize(
    ("template", "problem"),
    [("{% for m in messages %}", "is broken"), (None, "has no chat template")],
    ids=["syntax", "absent"],
)
def test_a_template_that_cannot_be_used(
    tiny_checkpoint: str, tmp_path: Path, template: str | None, problem: str
) -> None:
    shutil.copy(Path(tiny_checkpoint) / "tokenizer_config.json", tmp_path)
    if template is not None:
        put_template(tmp_path, "chat_template.jinja", template)
    with pytest.raises(ConfigError, match=problem):
        ChatTemplate(str(tmp_path), {})


def test_a_template_cannot_reach_into_python(tmp_path: Path) -> None:
    put_template(tmp_path, "chat_template.jinja", "{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError, match="refuses"):
        ChatTemplate(str(tmp_path), {}).render(TURNS)
