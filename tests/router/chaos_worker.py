"""`python tests/router/chaos_worker.py PORT LEDGER`: a worker that answers as asked, or worse.

A request brings `{"model", "id", "pieces", "stream"}` and is answered with that many pieces. Each
that is begun is a line of the file LEDGER, written before anything else is done. `POST /mood` with
`{"mood": ...}` makes it slow, make no sense, or refuse.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Final, Literal

from aiohttp import WSMsgType, web

Mood = Literal["good", "slow", "garbage", "refusing"]
MODEL: Final = "chaos"
_SLOW_S: Final = 0.05
_BAD: Final = 503


class ChaosWorker:
    """One worker."""

    def __init__(self, ledger: str) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._mood: Mood = "good"
        self._running = 0

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/mood", self._change)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        app.router.add_get("/v1/realtime", self._talk)
        return app

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        if self._mood == "garbage":
            return self._garbage(request)
        return web.json_response({"status": "ready"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"omni_queue_depth 0\nomni_requests_admitted {self._running}\n")

    async def _models(self, request: web.Request) -> web.Response:
        modalities = ["text", "audio"]
        model = {"id": MODEL, "created": os.getpid(), "input_modalities": modalities}
        return web.json_response({"data": [{**model, "output_modalities": modalities}]})

    async def _change(self, request: web.Request) -> web.Response:
        self._mood = (await request.json())["mood"]
        return web.json_response({"mood": self._mood})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if self._mood == "refusing":
            error = {"message": "not now", "code": "not_ready", "type": "server_error"}
            return web.json_response({"error": error}, status=_BAD)
        self._begin(asked["id"])
        if self._mood == "garbage":
            return self._garbage(request)
        self._running += 1
        try:
            if asked["stream"]:
                return await self._stream(request, asked["pieces"])
            await self._take_time()
            return web.json_response({"pieces": list(range(asked["pieces"]))})
        finally:
            self._running -= 1

    async def _stream(self, request: web.Request, pieces: int) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for piece in range(pieces):
            await reply.write(b"data: " + json.dumps({"piece": piece}).encode() + b"\n\n")
            await self._take_time()
        await reply.write(b"data: [DONE]\n\n")
        await reply.write_eof()
        return reply

    async def _transcribe(self, request: web.Request) -> web.Response:
        """The length of the file that came, and the request's id."""
        form = await request.post()
        self._begin(str(form["id"]))
        await self._take_time()
        file = form["file"]
        assert isinstance(file, web.FileField)
        return web.json_response({"bytes": len(file.file.read())})

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        """Says what it hears."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await self._take_time()
                await socket.send_str(message.data)
        return socket

    async def _take_time(self) -> None:
        await asyncio.sleep(_SLOW_S if self._mood == "slow" else 0)

    def _begin(self, request_id: str) -> None:
        os.write(self._ledger, f"{request_id}\n".encode())

    def _garbage(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        transport.write(b"\x00\xff what is this \r\n\r\n")  # type: ignore[attr-defined]
        transport.close()
        return web.Response()


if __name__ == "__main__":
    port, ledger = sys.argv[1:]
    web.run_app(
        ChaosWorker(ledger).app(),
        host="127.0.0.1",
        port=int(port),
        print=lambda line: None,
        reuse_address=True,
    )
