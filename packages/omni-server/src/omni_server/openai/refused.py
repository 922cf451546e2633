"""Fields of a chat body that would change the reply and that nothing here honours.

Refused by name unless they ask for what happens anyway. Knows what the pipeline says of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from omni_core.errors import RequestError
from omni_core.specs import ModelInfo
from omni_server.schema.chat import ChatBody, StreamOptions
from omni_server.schema.decode import short_value

MAX_METADATA: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512


def refuse_unsupported(chat: ChatBody, info: ModelInfo) -> None:
    """RequestError naming the first field that asks for what cannot be had."""
    harmless: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("tools", lambda value: info.tools or value == []),
        ("tool_choice", lambda value: info.tools or value in ("none", "auto")),
        ("functions", lambda value: value == []),
        ("function_call", lambda value: value in ("none", "auto")),
        ("logprobs", lambda value: info.logprobs or value is False),
        ("response_format", lambda value: info.grammars or value.type == "text"),
        ("reasoning_effort", lambda value: value == "none"),
        ("verbosity", lambda value: value == "medium"),
        ("service_tier", lambda value: value in ("auto", "default")),
        ("store", lambda value: value is False),
        ("web_search_options", lambda value: False),
        ("moderation", lambda value: False),
        ("mm_processor_kwargs", lambda value: value == {}),
    )
    for name, is_harmless in harmless:
        value = short_value(getattr(chat, name), name)
        if value is not None and not is_harmless(value):
            instead = _INSTEAD.get(name, "leave it out")
            raise RequestError(
                f"'{name}' is not supported by this server; {instead}.",
                param=name,
                code="unsupported_parameter",
            )
    _check_metadata(chat.metadata or {})


def check_stream_options(options: StreamOptions | None, *, stream: bool) -> None:
    """RequestError for options without a stream, and for one that cannot be had."""
    if options is None:
        return
    if not stream:
        raise RequestError("'stream_options' needs 'stream': true.", param="stream_options")
    if options.include_obfuscation:
        raise RequestError(
            "'stream_options.include_obfuscation' is not supported by this server; leave it out.",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )


_INSTEAD: Final = {
    "functions": "use 'tools', which replaced it",
    "function_call": "use 'tool_choice', which replaced it",
    "service_tier": "there is one tier; leave it out, or ask for auto or default",
    "store": "nothing is stored; leave it out, or send false",
}


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA:
        raise RequestError(f"'metadata' has more than {MAX_METADATA} keys.", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise RequestError(
                f"'metadata': keys have at most {MAX_METADATA_KEY} characters and values "
                f"{MAX_METADATA_VALUE}.",
                param="metadata",
            )
