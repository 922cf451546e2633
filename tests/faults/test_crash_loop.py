"""A process that dies whenever it is started stops the server, which says why."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from caller import Manners, call
from inject import kill
from target import Target, until
from traces import left_behind

STOPPED_S = 30.0
GONE_S = 5.0


@pytest.mark.matrix
async def test_the_server_stops_with_the_cause(echo_target: Target) -> None:
    body = {"messages": [{"role": "user", "content": "hang"}], "modalities": ["text", "audio"]}
    asking = asyncio.create_task(call(echo_target.url, body, Manners(patience_s=STOPPED_S)))

    def has_stopped() -> bool:
        if pid := echo_target.processes().get("voice"):
            with suppress(ProcessLookupError):
                kill(pid)
        return echo_target.exit_code is not None

    await asyncio.to_thread(until, has_stopped, STOPPED_S, "the server has stopped")
    assert echo_target.wait() == 1
    heard = await asking
    assert heard.error is not None or heard.broken
    said = "\n".join(echo_target.lines[-10:])
    assert "voice" in said
    assert "-9" in said
    assert "Traceback" not in said
    until(lambda: not left_behind(echo_target.pid), GONE_S, "nothing is left")
