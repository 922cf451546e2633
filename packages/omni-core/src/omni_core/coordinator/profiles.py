"""What the processes of a stage are doing, asked of them for a while.

Knows whom to ask and for how long to wait. Knows nothing of what stacks mean.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from omni_core.coordinator.desk import Desk
from omni_core.coordinator.fleet import Fleet
from omni_core.messages import Profile, ProfileReply

_GRACE_S: Final = 5.0

Stacks: TypeAlias = dict[str, int]
"""{"thread;outermost;...;innermost": how often it was seen}."""


async def ask_stacks(
    fleet: Fleet, desk: Desk[ProfileReply], stage: str, seconds: float
) -> dict[str, Stacks]:
    """{process: its stacks} of the ready processes of a stage; one that dies or does not answer in
    time is left out."""

    def question(query_id: int) -> Profile:
        return Profile(query_id=query_id, seconds=seconds)

    ready = [replica.process for replica in fleet.of_stage(stage) if replica.state == "ready"]
    replies = await desk.ask(ready, question, seconds + _GRACE_S)
    return {process: reply.stacks for process, reply in replies.items()}
