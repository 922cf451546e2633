"""The books of a soak: what counts as answered, as failed as it should, and as lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caller import Heard
from ledger import End, Fault, Ledger
from questions import Answer, Question

SOUND = np.arange(0, 4000, 40, dtype="<i2").tobytes()
OFF = (np.frombuffer(SOUND, "<i2") + 100).tobytes()
ASKED = Question(name="q", body={}, visits=frozenset(("thinker",)))
GOOD: dict[str, Any] = {"status": 200, "text": "yes", "sound": SOUND, "finish_reason": "stop"}
GOOD |= {"whole": True, "done": True}
DIED = {"code": "stage_died"}
LATER = {"retry-after": "1"}


def judge(*faults: Fault, cancelled: bool = False, **heard: Any) -> End:
    ledger = Ledger({"q": Answer(text="yes", sound=SOUND, finish_reason="stop")})
    ledger.faults += faults
    reply = Heard(**{"sent_s": 100.0, "ended_s": 101.0, **heard})
    return ledger.note(ASKED, reply, stream=True, cancelled=cancelled).end


def killed(process: str, began_s: float = 100.9, over_s: float = 105.0) -> Fault:
    return Fault(kind="kill", process=process, began_s=began_s, over_s=over_s)


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ({}, End.ANSWERED),
        ({"text": "no"}, End.LOST),
        ({"sound": OFF}, End.LOST),
        ({"sound": SOUND[:-2]}, End.LOST),
        ({"finish_reason": "length"}, End.LOST),
        ({"done": False}, End.LOST),
        ({"left": True}, End.LEFT),
        ({"hung": True, "done": False}, End.LOST),
    ],
)
def test_a_reply_is_compared_with_the_answer(change: dict[str, Any], end: End) -> None:
    assert judge(**GOOD | change) is end


@pytest.mark.parametrize(
    ("heard", "end"),
    [
        ({"status": 503, "error": DIED, "headers": LATER, "whole": True}, End.FAILED),
        ({"status": 503, "error": DIED, "whole": True}, End.LOST),
        ({"status": 500, "error": DIED, "headers": LATER, "whole": True}, End.LOST),
        ({"status": 200, "error": DIED, "broken": "cut"}, End.FAILED),
        ({"status": 200, "error": DIED, "whole": True, "done": True}, End.LOST),
        ({"status": 200, "error": DIED, "whole": True}, End.LOST),
        ({"status": 200, "broken": "cut"}, End.LOST),
        ({"status": 200, "whole": True}, End.LOST),
    ],
)
def test_a_failure_needs_a_cause_and_must_be_told(heard: dict[str, Any], end: End) -> None:
    assert judge(killed("thinker"), **heard) is end
    assert judge(**heard) is End.LOST
    assert judge(killed("talker"), **heard) is End.LOST
    assert judge(killed("thinker", 50.0, 60.0), **heard) is End.LOST


def test_the_end_of_the_server_needs_no_words() -> None:
    assert judge(killed("coordinator"), status=0, broken="refused") is End.FAILED
    assert judge(killed("coordinator"), status=200, broken="cut") is End.FAILED
    assert judge(status=0, broken="refused") is End.LOST


def test_only_who_cancels_may_be_cancelled() -> None:
    heard: dict[str, Any] = {"status": 499, "error": {"code": "cancelled"}, "whole": True}
    assert judge(**heard, cancelled=True) is End.LEFT
    assert judge(**heard) is End.LOST
