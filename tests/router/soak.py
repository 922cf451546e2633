"""`python tests/router/soak.py --seconds 600`: a router whose workers die, hang, slow down, make no
sense, come and go while clients ask; no request may be lost without an error, or begun twice.

Real processes on the loopback interface. The ledger is what the workers wrote before they did
anything else; the verdict is what clients saw beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from chaos_worker import MODEL
from processes_of_soak import ADMIN_KEY, Worker, fds, free_port, rss_mb, start_router, tell

CLIENTS: Final = 24
WORKERS: Final = 4
PATIENCE_S: Final = 60.0
PIECES: Final = 30
FILE_BYTES: Final = 300_000
SETTLE_S: Final = 20.0
MORE_RSS_MB: Final = 40.0
"""Of the router, from the end of the warm-up to the end."""
MORE_FDS: Final = 20


@dataclass(slots=True)
class Verdict:
    """What clients saw."""

    whole: Counter[str] = field(default_factory=Counter)
    """By kind."""
    failed: Counter[str] = field(default_factory=Counter)
    """By kind and how."""
    answered: set[str] = field(default_factory=set)
    """Ids of whole answers."""
    wrong: list[str] = field(default_factory=list)
    """What must not be."""


@dataclass(slots=True)
class Soak:
    """One run."""

    url: str
    session: aiohttp.ClientSession
    random: random.Random
    verdict: Verdict = field(default_factory=Verdict)
    stopped: bool = False
    asked: int = 0

    async def client(self) -> None:
        """Asks one thing after another until the end."""
        kinds: list[Callable[[str], Awaitable[str]]] = [self._plain, self._stream, self._form]
        kinds += [self._stream, self._socket]
        while not self.stopped:
            self.asked += 1
            name, kind = f"r{self.asked}", self.random.choice(kinds)
            label = kind.__name__.strip("_")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    failure = await kind(name)
            except TimeoutError:
                self.verdict.wrong.append(f"{label} {name} hangs")
                continue
            except (aiohttp.ClientError, ConnectionError, EOFError) as error:
                failure = type(error).__name__
            if failure:
                self.verdict.failed[f"{label}: {failure}"] += 1
                await asyncio.sleep(0.02)  # as a client that is told to retry would, nearly
            else:
                self.verdict.whole[label] += 1
                if label != "socket":
                    self.verdict.answered.add(name)

    async def _plain(self, name: str) -> str:
        body = {"model": MODEL, "id": name, "pieces": PIECES, "stream": False}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as reply:
            content = await reply.json()
            if reply.status != 200:
                return self._told(name, reply.status, content)
            if content["pieces"] != list(range(PIECES)):
                self.verdict.wrong.append(f"{name} is answered with {content}")
            return ""

    async def _stream(self, name: str) -> str:
        body = {"model": MODEL, "id": name, "pieces": PIECES, "stream": True}
        pieces, done, error = [], False, ""
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as reply:
            if reply.status != 200:
                return self._told(name, reply.status, await reply.json())
            try:
                async for line in reply.content:
                    data = line.decode().removeprefix("data: ").strip()
                    if data == "[DONE]":
                        done = True
                    elif data and "error" in (event := json.loads(data)):
                        error = event["error"]["code"]
                    elif data:
                        pieces.append(event["piece"])
            except (aiohttp.ClientError, ConnectionError) as broken:
                if done:
                    self.verdict.wrong.append(f"{name} is broken behind its end")
                return f"cut, {'told ' + error if error else type(broken).__name__}"
        if not done or pieces != list(range(PIECES)):
            self.verdict.wrong.append(f"{name} ends as if whole: {len(pieces)} pieces, {error!r}")
        return ""

    async def _form(self, name: str) -> str:
        form = aiohttp.FormData()
        form.add_field("id", name)
        form.add_field("file", os.urandom(FILE_BYTES), filename="ä b.wav")
        form.add_field("model", MODEL)
        url = f"{self.url}/v1/audio/transcriptions"
        async with self.session.post(url, data=form) as reply:
            content = await reply.json()
            if reply.status != 200:
                return self._told(name, reply.status, content)
            if content["bytes"] != FILE_BYTES:
                self.verdict.wrong.append(f"{name}: {content['bytes']} bytes came of {FILE_BYTES}")
            return ""

    async def _socket(self, name: str) -> str:
        try:
            socket = await self.session.ws_connect(f"{self.url}/v1/realtime?model={MODEL}")
        except aiohttp.WSServerHandshakeError as refused:
            return f"refused {refused.status}"
        async with socket:
            for number in range(PIECES):
                await socket.send_str(f"{name} {number}")
                message = await socket.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    if socket.close_code in (1000, None):
                        self.verdict.wrong.append(f"{name} is closed with {socket.close_code}")
                    return f"closed {socket.close_code}"
                if message.data != f"{name} {number}":
                    self.verdict.wrong.append(f"{name} {number} hears {message.data}")
        return ""

    def _told(self, name: str, status: int, content: Any) -> str:
        """An error must be an OpenAI error object, and none of the client's making."""
        code = content.get("error", {}).get("code")
        if status < 500 or not code:
            self.verdict.wrong.append(f"{name}: {status} {content}")
        return f"{status} {code}"


class Chaos:
    """Does harm to workers, one thing at a time, and takes it back."""

    def __init__(self, soak: Soak, workers: list[Worker], guest: Worker) -> None:
        self._soak = soak
        self._workers = workers
        self._guest = guest
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        """Until the end."""
        deeds = [self._kill, self._hang, self._garbage, self._slow, self._refuse, self._visit]
        while not self._soak.stopped:
            deed = self._soak.random.choice(deeds)
            self.done[deed.__name__.strip("_")] += 1
            await deed(self._soak.random.choice(self._workers))
            await asyncio.sleep(self._soak.random.uniform(0.3, 1.5))

    async def _kill(self, worker: Worker) -> None:
        worker.end()
        await asyncio.sleep(self._soak.random.uniform(0.1, 3))
        worker.start()

    async def _hang(self, worker: Worker) -> None:
        worker.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._soak.random.uniform(0.5, 8))
        finally:
            worker.signal(signal.SIGCONT)

    async def _garbage(self, worker: Worker) -> None:
        await self._mood(worker, "garbage", 1.0)

    async def _slow(self, worker: Worker) -> None:
        await self._mood(worker, "slow", 3.0)

    async def _refuse(self, worker: Worker) -> None:
        await self._mood(worker, "refusing", 1.0)

    async def _visit(self, _: Worker) -> None:
        """A worker more comes, is drained and goes."""
        self._guest.start()
        await self._admin(
            "POST", "workers", url=f"http://127.0.0.1:{self._guest.port}", name="guest"
        )
        await asyncio.sleep(3)
        await self._admin("POST", "workers/guest/drain")
        await asyncio.sleep(1)
        await self._admin("DELETE", "workers/guest")
        self._guest.end()

    async def _mood(self, worker: Worker, mood: str, seconds: float) -> None:
        await self._say(worker, mood)
        await asyncio.sleep(self._soak.random.uniform(0.2, seconds))
        await self._say(worker, "good")

    async def _say(self, worker: Worker, mood: str) -> None:
        url = f"http://127.0.0.1:{worker.port}/mood"
        with suppress(aiohttp.ClientError, ConnectionError):
            async with self._soak.session.post(url, json={"mood": mood}):
                pass

    async def _admin(self, method: str, path: str, **body: Any) -> None:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        url = f"{self._soak.url}/router/v1/{path}"
        async with self._soak.session.request(method, url, json=body, headers=headers) as reply:
            if reply.status >= 400:
                wrong = f"{method} {path}: {reply.status} {await reply.text()}"
                self._soak.verdict.wrong.append(wrong)


async def soak(seconds: float, seed: int, place: Path) -> int:
    """Run it; the exit status."""
    workers = [Worker(f"w{n}", free_port(), place / f"w{n}.ledger") for n in range(WORKERS)]
    guest = Worker("guest", free_port(), place / "guest.ledger")
    port = free_port()
    async with AsyncExitStack() as running:
        for worker in [*workers, guest]:
            running.callback(worker.end)
        for worker in workers:
            worker.start()
        router = start_router(place, port, workers)
        running.callback(router.kill)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        session = await running.enter_async_context(aiohttp.ClientSession(connector=connector))
        run = Soak(f"http://127.0.0.1:{port}", session, random.Random(seed))
        await until_ready(run)
        chaos = Chaos(run, workers, guest)
        clients = [asyncio.create_task(run.client()) for _ in range(CLIENTS)]
        await asyncio.sleep(min(10.0, seconds / 4))
        before = (rss_mb(router.pid), fds(router.pid))
        deeds = asyncio.create_task(chaos.run())
        await asyncio.sleep(seconds)
        run.stopped = True
        await asyncio.gather(deeds, *clients)
        await settle(run, router.pid, before)
        judge(run, [*workers, guest])
        router.send_signal(signal.SIGTERM)
        if router.wait(30):
            run.verdict.wrong.append(f"the router ended with {router.returncode}")
    report(run, chaos)
    return 1 if run.verdict.wrong else 0


async def until_ready(run: Soak) -> None:
    """All workers are heard of."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with suppress(aiohttp.ClientError):
            async with run.session.get(f"{run.url}/health") as reply:
                if (await reply.json())["status"] == "ready":
                    return
        await asyncio.sleep(0.1)
    raise RuntimeError("the router's workers did not get ready")


async def settle(run: Soak, pid: int, before: tuple[float, int]) -> None:
    """Everybody has left: nothing is held for anybody."""
    deadline_s = time.monotonic() + SETTLE_S
    held = ["not asked"]
    while held and time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
        async with run.session.get(f"{run.url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        names = ("omni_router_in_flight", "omni_router_queue_depth", "omni_router_worker_in_flight")
        held = [line for line in lines if line.startswith(names) and not line.endswith(" 0.0")]
        more = fds(pid) - before[1]
        held += [f"{more} descriptors more"] if more > MORE_FDS else []
    run.verdict.wrong += held
    more_mb = rss_mb(pid) - before[0]
    tell(f"router: {before[0]:.0f} MB and {more_mb:+.1f} MB, {before[1]} to {fds(pid)} descriptors")
    if more_mb > MORE_RSS_MB:
        run.verdict.wrong.append(f"the router has grown by {more_mb:.0f} MB")


def judge(run: Soak, workers: list[Worker]) -> None:
    """The workers' ledgers beside what clients saw."""
    begun = Counter(
        line
        for worker in workers
        if worker.ledger.exists()
        for line in worker.ledger.read_text().split()
    )
    twice = [name for name, times in begun.items() if times > 1]
    run.verdict.wrong += [f"{name} was begun {begun[name]} times" for name in twice]
    unbegun = run.verdict.answered - set(begun)
    run.verdict.wrong += [f"{name} was answered by nobody" for name in unbegun]


def report(run: Soak, chaos: Chaos) -> None:
    """For a person to read."""
    verdict = run.verdict
    tell(f"{run.asked} requests; harm: {dict(chaos.done)}")
    tell(f"whole: {dict(verdict.whole)}")
    for how, times in sorted(verdict.failed.items()):
        tell(f"  failed, {how}: {times}")
    for wrong in verdict.wrong[:50]:
        tell(f"WRONG: {wrong}")
    tell(f"{sum(verdict.whole.values())} passed, {len(verdict.wrong)} failed")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Harm a router's workers while clients ask.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="directory for logs and ledgers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        return asyncio.run(soak(options.seconds, options.seed, options.keep or Path(place)))


if __name__ == "__main__":
    sys.exit(main())
