"""The client's own books of a soak: what was asked, what was done to the server, how each ended.

Knows what a caller may expect. Asks the server nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from caller import Heard
from questions import Answer, Question

RETRYABLE: Final = 503
CANCELLED: Final = "cancelled"
GRACE_S: Final = 1.0
"""A failure may be heard this long before or after the fault that caused it was noted as over."""


class End(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    FAILED = "failed as it should"
    LEFT = "left by its client"
    LOST = "lost"


@dataclass(slots=True, kw_only=True)
class Fault:
    """Something done to the server. Times are CLOCK_MONOTONIC seconds."""

    kind: str
    process: str
    began_s: float
    over_s: float = float("inf")
    """When everything was ready again."""

    def explains(self, question: Question, heard: Heard) -> bool:
        """Whether a request had to fail: it needs what was broken while it was."""
        touches = self.process == "coordinator" or self.process in question.visits
        during = self.began_s - GRACE_S <= heard.ended_s and heard.sent_s <= self.over_s + GRACE_S
        return touches and during


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request and its end."""

    question: Question
    stream: bool
    heard: Heard
    end: End
    why: str
    """What went wrong, for those that are lost; else what caused the end."""


@dataclass(slots=True)
class Ledger:
    """All requests of one client, judged as they end."""

    answers: dict[str, Answer]
    entries: list[Entry] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def note(
        self, question: Question, heard: Heard, *, stream: bool, cancelled: bool = False
    ) -> Entry:
        """Judge one request; `cancelled`: its client has asked for its end."""
        end, why = self._judge(question, heard, cancelled=cancelled)
        entry = Entry(question=question, stream=stream, heard=heard, end=end, why=why)
        self.entries.append(entry)
        return entry

    def counts(self) -> Counter[End]:
        """How many ended how."""
        return Counter(entry.end for entry in self.entries)

    def lost(self) -> list[Entry]:
        """Those that ended otherwise than any caller may expect, or not at all."""
        return [entry for entry in self.entries if entry.end is End.LOST]

    def heard_after_s(self, fault: Fault) -> list[float]:
        """Of the requests in flight at a fault that it failed: how soon they were told."""
        return [
            entry.heard.ended_s - fault.began_s
            for entry in self.entries
            if entry.end is End.FAILED
            and fault.explains(entry.question, entry.heard)
            and entry.heard.sent_s < fault.began_s <= entry.heard.ended_s
        ]

    def _judge(self, question: Question, heard: Heard, *, cancelled: bool) -> tuple[End, str]:
        if heard.left:
            return End.LEFT, "the client went"
        if cancelled and heard.error is not None and heard.error["code"] == CANCELLED:
            return End.LEFT, "cancelled"
        if heard.hung:
            return End.LOST, "it never ended"
        if heard.status == 200 and heard.error is None and heard.whole and heard.done:
            different = self.answers[question.name].differs(heard)
            return (End.LOST, different) if different else (End.ANSWERED, "")
        if wrong := _told_wrongly(heard):
            return End.LOST, wrong
        if fault := self._cause(question, heard):
            return End.FAILED, f"{fault.kind} {fault.process}"
        return End.LOST, f"without a cause: {heard.status} {heard.error or heard.broken}"

    def _cause(self, question: Question, heard: Heard) -> Fault | None:
        """Only the end of the server itself excuses that nothing was said."""
        return next(
            (
                fault
                for fault in self.faults
                if fault.explains(question, heard)
                and (heard.error is not None or fault.process == "coordinator")
            ),
            None,
        )


def _told_wrongly(heard: Heard) -> str:
    """How a failure is told otherwise than it should be; empty if it is told well."""
    if heard.error is None:
        return "" if heard.broken else "it stopped in the middle and looks complete"
    if heard.status == 200:
        return "an error was followed by a clean end" if heard.done or heard.whole else ""
    if heard.status != RETRYABLE:
        return f"status {heard.status}: {heard.error}"
    return "" if "retry-after" in heard.headers else f"status {heard.status} without Retry-After"
