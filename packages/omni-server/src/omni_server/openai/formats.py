"""`response_format`: what the text of a reply must be, as a grammar.

Knows OpenAI's three formats. What a schema can demand is known where it is compiled.
"""

from __future__ import annotations

from omni_core.errors import RequestError
from omni_core.types import Grammar
from omni_server.openai.tools import schema_text
from omni_server.schema.chat import JsonSchemaFormat, ResponseFormat

ANY_OBJECT = '{"type": "object"}'


def response_grammar(asked: ResponseFormat | None) -> Grammar | None:
    """The grammar of the answer; None for free text."""
    match asked:
        case None | ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="json_object"):
            return Grammar(kind="json_schema", text=ANY_OBJECT, param="response_format")
        case ResponseFormat(type="json_schema", json_schema=None):
            raise RequestError(
                "Missing required parameter: 'response_format.json_schema'.",
                param="response_format.json_schema",
                code="missing_required_parameter",
            )
        case ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema)):
            param = "response_format.json_schema.schema"
            text = ANY_OBJECT if schema is None else schema_text(schema, param)
            return Grammar(kind="json_schema", text=text, param=param)
        case _:
            raise RequestError(
                f"'response_format.type': {asked.type!r} is not one of text, json_object, "
                "json_schema.",
                param="response_format.type",
            )
