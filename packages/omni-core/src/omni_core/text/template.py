"""The checkpoint's chat template: turns to the text of a prompt.

Knows Jinja as chat templates are written for transformers: sandboxed, blocks trimmed, with loop
controls, `raise_exception`, `strftime_now` and a `tojson` that leaves HTML alone. Knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_core.checkpoint.files import read_chat_template
from omni_core.errors import ConfigError, RequestError


class ChatTemplate:
    """One compiled template; safe to share by threads."""

    def __init__(self, model_path: str, variables: Mapping[str, str]) -> None:
        """`variables` are what templates may name besides the messages: the tokens with a role.

        ConfigError for a checkpoint without a template or with one that does not compile.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(read_chat_template(model_path))
        except TemplateSyntaxError as exc:
            raise ConfigError(f"the chat template of {model_path} is broken: {exc}") from exc
        self._variables = dict(variables)

    def render(self, turns: Sequence[dict[str, Any]], tools: Sequence[Any] = ()) -> str:
        """The prompt up to where the reply begins; RequestError if the template refuses. `tools`
        are functions as OpenAI writes them, which is how templates want them."""
        try:
            return self._template.render(
                self._variables,
                messages=turns,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
            )
        except TemplateError as exc:
            raise RequestError(
                f"the model's chat template refuses these messages: {exc}", param="messages"
            ) from exc


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})
