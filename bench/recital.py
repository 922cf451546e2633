"""A tiny Ming checkpoint whose Thinker recites a text, and whose Talker stops only at its limits.

With the layers silent, the last token's embedding is all that the head sees, so that the head makes
a walk of the vocabulary: from each piece of the text to the next, from any prompt to the first, and
from the last to the end of the reply. The pieces are tokens of their own, for each may occur once.
The product runs as it is. Runs no model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel

from omni_core.types import FloatArray

EMBEDDINGS: Final = "model.model.word_embeddings.weight"
HEAD: Final = "model.lm_head.weight"
NORM: Final = "model.model.norm.weight"
SILENT: Final = ("attention.dense.weight", "down_proj.weight")
"""What a layer adds goes through one of these."""
PROMPT_END: Final = "</role>"
STOP_BIAS: Final = "stop_head.bias"
NEVER: Final = np.array([100.0, -100.0], np.float32)
"""Of going on, and of stopping."""

ENGLISH: Final = (
    "The fox came down to the river before the sun was up. She had walked all night through wet "
    "grass, and her paws were cold. On the other bank, an old heron stood among the reeds. Why do "
    "you never sleep, asked the fox? Because fish swim early, answered the bird, and whoever wants "
    "breakfast must be patient. They watched the mist drift over the water. A boat passed, loaded "
    "with apples from some village upstream. Two children sat in front, singing loudly about "
    "winter. Neither animal moved. When it was quiet again, the heron lifted one foot, looked hard "
    "at his own picture, then struck. He missed! Never mind, said the fox kindly, tomorrow brings "
    "another chance. Half an hour later, light touched the highest trees. Somewhere a dog barked, "
    "a door opened, smoke began to rise. It was time for her to go home. Will we meet here again? "
    "Perhaps, he replied, if this river keeps running. So she trotted back along the hedge, past "
    "three sleeping cows, under the wooden fence, up the hill. Behind her the heron tried once "
    "more. This time there was a splash, a flash of silver, and a very happy silence."
)
CHINESE: Final = (
    "天还没有亮，狐狸就来到了河边。她在湿湿的草地里走了一整夜，爪子都冻僵了。对岸的芦苇丛中，站着一只年老的苍鹭。"
    "你为什么从来不睡觉呢？狐狸轻声问道。因为鱼儿起得早，鸟回答说，谁想吃早饭，谁就得有耐心。他们静静看着雾气从水面飘过。"
    "一条小船经过这里，上面装满上游村庄的苹果。两个孩子坐在船头，大声唱着关于冬天的歌。谁也没有动。等到四周重新安静下来，"
    "苍鹭抬起一只脚，仔细看了看自己的倒影，然后猛地一啄。没有抓到！没关系，狐狸温和地安慰他，明天还会有别的机会。"
    "过了半个小时，阳光照亮最高的树梢。远处传来狗叫，有人打开门，炊烟慢慢升起。她该回家去了。我们以后还能再见面吗？"
    "也许吧，他笑着答道，只要河水一直流淌。于是她沿着篱笆往回跑，绕过三头熟睡的奶牛，钻过木头栅栏，爬上山坡。"
    "在她身后，苍鹭又试了一次。这回溅起一片水花，闪过一道银光，接着是非常幸福的沉默。"
)
TEXTS: Final = {"English": (ENGLISH, 4), "Chinese": (CHINESE, 1)}
"""{language: (a text, least characters of a token)}: about what tokens of published vocabularies
hold."""


def pieces_of(text: str, least: int) -> list[str]:
    """The text in pieces of so many characters, or of more where it has had that piece before; its
    end, if that is no such piece, is left out."""
    pieces: dict[str, None] = {}
    start, end = 0, least
    while end <= len(text):
        piece = text[start:end]
        if piece in pieces:
            end += 1
        else:
            pieces[piece] = None
            start, end = end, end + least
    return list(pieces)


def build_reciting(directory: Path, pieces: Sequence[str]) -> str:
    """Write it; returns the path as the servers want it."""
    command = [sys.executable, "-m", "omni_server", "tiny", "ming-omni", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    thinker = config["llm_config"]
    opening, *said = _teach(directory / "tokenizer.json", pieces, thinker["vocab_size"])
    walk = [opening, *said, thinker["eos_token_id"]]
    thinker["vocab_size"] = max(thinker["vocab_size"], *(token + 1 for token in said))
    (directory / "config.json").write_text(json.dumps(config))
    embeddings, head = walk_of(walk, thinker["vocab_size"], thinker["hidden_size"])
    given = {EMBEDDINGS: embeddings, HEAD: head, NORM: np.ones(thinker["hidden_size"], np.float32)}
    for shard in directory.glob("model-*.safetensors"):
        tensors = load_file(shard)
        silent = {name: tensors[name] * 0 for name in tensors if name.endswith(SILENT)}
        _save(shard, tensors | silent | {name: given[name] for name in given.keys() & tensors})
    talker = directory / "talker" / "model.safetensors"
    _save(talker, load_file(talker) | {STOP_BIAS: NEVER})
    return str(directory)


def walk_of(walk: Sequence[int], tokens: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Embeddings and head, (tokens, width) each, with which each token of the walk follows the one
    before: rows of noise are nearly orthogonal."""
    noise = np.random.default_rng(0).standard_normal((tokens, width), dtype=np.float32)
    head = np.zeros_like(noise)
    head[list(walk[1:])] = noise[list(walk[:-1])]
    return noise, head


def _teach(file: Path, pieces: Sequence[str], first: int) -> list[int]:
    """Add to the vocabulary what it lacks of the pieces; no prompt changes, for none has a merge.
    Returns the token that every prompt ends with, and those of the pieces."""
    tokenizer: dict[str, Any] = json.loads(file.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    spell = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    spelled = [spell(piece)[0][0] for piece in pieces]
    unknown = [word for word in spelled if word not in vocabulary]
    vocabulary |= {word: first + place for place, word in enumerate(unknown)}
    file.write_text(json.dumps(tokenizer))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return [added[PROMPT_END], *(vocabulary[word] for word in spelled)]


def _save(file: Path, tensors: Mapping[str, FloatArray]) -> None:
    save_file(dict(tensors), file, metadata={"format": "pt"})
