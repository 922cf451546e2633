"""The responses of a session: one at a time in its conversation, a few beside it.

Knows who may begin and who must wait. What a response does is `answer`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from omni_core.errors import NotFoundError, RequestError
from omni_server.openai.envelope import require_serving
from omni_server.rate import Allowance
from omni_server.realtime.answer import Answer, Asked, CancelReason
from omni_server.realtime.items import Json
from omni_server.realtime.shared import Shared

MOST_BESIDE: Final = 4
"""Responses outside of the conversation, at a time."""
_ENDED_KEPT: Final = 64
"""Ids of the last responses: to cancel one of these is late, and no mistake."""


class Answers:
    """Begins, counts and cancels."""

    def __init__(self, shared: Shared, on_end: Callable[[Answer], None]) -> None:
        self.active: Answer | None = None
        """The one in the conversation."""
        self._shared, self._on_end = shared, on_end
        self._beside: dict[str, Answer] = {}
        self._ended: list[str] = []
        self.none_run = asyncio.Event()
        self.none_run.set()

    def begin(self, asked: Asked) -> None:
        """Begin to answer; RequestError where another must end first, other errors where the server
        takes none now."""
        self._require_place(asked)
        require_serving(self._shared.pipeline)
        with ExitStack() as undo:
            self._shared.enter()
            undo.callback(self._shared.leave)
            allowance = self._shared.count()  # what is refused before takes nothing of the rate
            answer = Answer(self._shared, asked, self._over)
            undo.pop_all()
        self.none_run.clear()
        if answer.is_in_conversation:
            self.active = answer
        else:
            self._beside[answer.id] = answer
        answer.start()
        if allowance is not None:
            self._shared.put(_limits_object(allowance))

    async def cancel(self, response_id: str | None, reason: CancelReason) -> None:
        """Cancel that response, or the one in the conversation; harmless if it has just ended."""
        if response_id is None:
            if self.active is None:
                raise RequestError(
                    "There is no response to cancel.", code="response_cancel_not_active"
                )
            await self.active.cancel(reason)
            return
        answer = self._beside.get(response_id)
        if self.active is not None and self.active.id == response_id:
            answer = self.active
        if answer is not None:
            await answer.cancel(reason)
        elif response_id not in self._ended:
            raise NotFoundError(
                f"There is no response {response_id[:64]!r}.",
                param="response_id",
                code="response_cancel_not_active",
            )

    async def interrupt(self) -> None:
        """Somebody speaks: end what is being said in the conversation."""
        if self.active is not None:
            await self.active.cancel("turn_detected")

    async def close(self) -> None:
        """End all."""
        for answer in (self.active, *self._beside.values()):
            if answer is not None:
                await answer.cancel()

    def _require_place(self, asked: Asked) -> None:
        if asked.settings.is_apart:
            if len(self._beside) >= MOST_BESIDE:
                raise RequestError(
                    f"There are {MOST_BESIDE} responses outside of the conversation already; wait "
                    "until one has ended.",
                    code="too_many_responses",
                )
        elif self.active is not None:
            raise RequestError(
                f"The conversation has an active response, {self.active.id}; wait for its "
                "response.done, or cancel it.",
                code="conversation_already_has_active_response",
            )

    def _over(self, answer: Answer) -> None:
        self._shared.leave()
        self._ended = [*self._ended[1 - _ENDED_KEPT :], answer.id]
        if answer is self.active:
            self.active = None
        self._beside.pop(answer.id, None)
        try:
            self._on_end(answer)
        finally:
            if self.active is None and not self._beside:
                self.none_run.set()


def _limits_object(allowance: Allowance) -> Json:
    limit = {
        "name": "requests",
        "limit": allowance.limit,
        "remaining": allowance.remaining,
        "reset_seconds": round(allowance.reset_s, 3),
    }
    return {"type": "rate_limits.updated", "rate_limits": [limit]}
