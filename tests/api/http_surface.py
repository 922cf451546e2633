"""What of the HTTP API callers rely on: operations, and the fields of bodies and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Surface = dict[str, dict[str, list[str]]]


def surface(document: Json) -> Surface:
    """{"POST /v1/...": {}} and {"ChatBody": {"fields": [...], "required": [...]}}."""
    found: Surface = {
        f"{method.upper()} {path}": {}
        for path, methods in document["paths"].items()
        for method in methods
    }
    for name, schema in document["components"]["schemas"].items():
        fields = schema.get("properties")
        if fields is not None:
            required = sorted(schema.get("required", ()))
            found[name] = {"fields": sorted(fields), "required": required}
    return found


def breaks(old: Surface, new: Surface) -> Iterator[tuple[str, str]]:
    """(what, why) of everything that callers of the old one may miss."""
    for name, before in old.items():
        now = new.get(name)
        if now is None:
            yield name, "is gone"
            continue
        for field in before.get("fields", ()):
            if field not in now.get("fields", ()):
                yield f"{name}.{field}", "is gone"
        if name.endswith(("Body", "Form")):
            for field in now.get("required", ()):
                if field not in before.get("required", ()):
                    yield f"{name}.{field}", "is required now"
