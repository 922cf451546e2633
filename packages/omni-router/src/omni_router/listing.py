"""The models of all workers as one list.

A model that several workers serve is listed once, with all that any of them can do: a request goes
to one that can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omni_router.errors import NotFoundError
from omni_router.worker import Worker


def models(workers: Iterable[Worker]) -> list[dict[str, Any]]:
    """Model objects, as `GET /v1/models` lists them."""
    merged: dict[str, dict[str, Any]] = {}
    for worker in workers:
        for ability in worker.abilities:
            known = merged.get(ability.model)
            merged[ability.model] = (
                dict(ability.listed) if known is None else _both(known, ability.listed)
            )
    return list(merged.values())


def model(workers: Iterable[Worker], model_id: str) -> dict[str, Any]:
    """One of them; NotFoundError if there is no such."""
    for listed in models(workers):
        if listed["id"] == model_id:
            return listed
    raise NotFoundError(
        f"The model {model_id!r} does not exist here; GET /v1/models lists those that do.",
        param="model",
        code="model_not_found",
    )


def _both(one: Any, other: Any) -> Any:
    """What either has: lists in their order, objects by name, what is true."""
    match one, other:
        case dict(), dict():
            return {
                name: _both(one[name], other[name])
                if name in one and name in other
                else one.get(name, other.get(name))
                for name in {**one, **other}
            }
        case list(), list():
            return [*one, *(item for item in other if item not in one)]
        case bool(), bool():
            return one or other
        case None, _:
            return other
        case _:
            return one
