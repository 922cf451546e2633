"""What strangers say on our sockets ends nothing: it is dropped and counted."""

from __future__ import annotations

from caller import call
from inject import send_malformed, send_noise
from target import Target, until

REFUSED = "omni_relay_messages_refused"
COUNTED_S = 20.0
WORDS = "still here "
BODY = {"messages": [{"role": "user", "content": WORDS}], "modalities": ["text", "audio"]}


async def test_malformed_messages_and_noise_cost_nothing(echo_target: Target) -> None:
    before, sent = echo_target.processes(), 0
    for socket_file in echo_target.sockets().values():
        send_noise(socket_file)
        sent += send_malformed(socket_file)
    until(lambda: echo_target.counter(REFUSED) >= sent, COUNTED_S, "all is read and counted")
    for stream in (True, False):
        heard = await call(echo_target.url, {**BODY, "stream": stream})
        assert (heard.status, heard.text, heard.done) == (200, WORDS, True), heard.error
    assert echo_target.health()["status"] == "ready"
    assert echo_target.processes() == before
    assert echo_target.counter(REFUSED) == sent
