"""The two tiny tokenizers, of Thinker and Talker: byte-level BPE trained on three sentences, then
the special tokens in their published order."""

from __future__ import annotations

from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BASE_SIZE: Final = 400
"""Tokens before the special ones."""
_THINKER: Final = (
    "<|startoftext|> <|endoftext|> [CLS] [gMASK] <|role_end|> <role> </role> <tool_call> "
    "</tool_call> <tool_response> </tool_response> <think> </think> <imagePatch> <image> </image> "
    "<video> </video> <gen_imagePatch> <gen_image> </gen_image> <imageHere> <end_of_chunk> "
    "<end_of_audio> <audioPatch> <audio> </audio> <gen_audioPatch> <gen_audio> </gen_audio> "
    "<audioHere> <framePatch> <text> <asr> <tts>"
)
_TALKER: Final = (
    "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <audio> "
    "</audio> <audioPatch>"
)
THINKER_SPECIALS: Final = tuple(_THINKER.split())
TALKER_SPECIALS: Final = tuple(_TALKER.split())
SENTENCES: Final = (
    "the quick brown fox speaks about speech generation and images",
    "你好，世界。今天天气很好，我们去公园吧！",
    "speaker_1: Text input: Please generate speech based on the following description.",
)
REPEATS: Final = 4
"""So often each sentence is read, for its words to be worth a merge."""

CHAT_TEMPLATE: Final = (
    "{{ '<role>SYSTEM</role>' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ 'detailed thinking off<|role_end|>' }}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<role>HUMAN</role>' + m.content + '<|role_end|>' }}"
    "{% elif m.role == 'assistant' %}{{ '<role>ASSISTANT</role>' + m.content + '<|role_end|>' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{% endif %}"
)
"""The published role format in our own words. Nothing of ours reads it; see `preprocess.chat`."""


def train(specials: tuple[str, ...]) -> Tokenizer:
    """A tokenizer of the sentences; the same each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(SENTENCES) * REPEATS, trainer)
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def tokenizer_config(end: str, padding: str, **more: str) -> dict[str, str | bool | int]:
    """Contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": padding,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        **more,
    }
