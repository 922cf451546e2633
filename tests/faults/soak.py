"""Random load, disconnects and kills, and what came of it: `nox -s soak -- --seconds 60`.

Clients ask greedy questions of every kind, streamed and not; some leave in the middle, some never
read. Meanwhile every process of the server is killed in turn, the server itself included, stands
still for a moment, or hears noise. At the end the clients' own ledger and the system say whether
any request was lost and anything was left. All on the loopback interface, for a bounded time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from account import Account, kept, table
from caller import PATIENT, Heard, Manners, call, cancel
from inject import kill, send_malformed, send_noise, stopped
from ledger import End, Fault, Ledger
from omni_qwen3.tiny import build
from questions import QUESTIONS, Question, answers, endless
from target import LAYOUT, Target, start, until
from traces import Holdings, holdings, left_behind

SERVER: Final = "coordinator"
STAGES: Final = ("frontend", "encoders", "thinker", "talker", "code2wav")
VICTIMS: Final = (SERVER, *STAGES)
SERVER_KILLS_UNTIL: Final = 0.4
FAULTS_UNTIL: Final = 0.7
SETTLING: Final = 0.1
PEACE: Final = 0.2
"""Shares of the time. The server itself is killed in the first part only, then only its stages,
then nothing: long enough to see whether what lives on grows."""
LAST: Final = next(question for question in QUESTIONS if question.name == "speech all")
STREAMED: Final = 0.6
CANCELLED: Final = 0.08
RETRY_S: Final = 0.5
PAUSE_S: Final = (1.0, 4.0)
STILL_S: Final = (0.05, 0.5)
READY_S: Final = 60.0
"""To notice that it is never ready again; what is asked for is stated by the account."""
GONE_S: Final = 5.0
QUIET_S: Final = 10.0
BUSY: Final = ("held", "gathering", "inbox", "waiting", "running", "kv_pages_used")


@dataclass
class Soak:
    """One run."""

    checkpoint: str
    seconds: float
    clients: int
    chance: random.Random
    port: int
    target: Target = field(init=False)
    ledger: Ledger = field(init=False)
    account: Account = field(default_factory=Account)
    _began_s: float = 0.0
    _over: bool = False
    _asking: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    """Clear while nobody is to ask anything."""

    async def run(self) -> Account:
        """From the first start to the last look at what is left."""
        self.target = await self._start()
        try:
            self.ledger = Ledger(await answers(self.target.url, QUESTIONS))
            self._began_s = time.monotonic()
            self._open.set()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.clients):
                    group.create_task(self._ask_on())
                await self._do_harm()
                await asyncio.sleep(SETTLING * self.seconds)
                self.account.early = await self._quiet_holdings()
                await asyncio.sleep(PEACE * self.seconds)
                self._over = True
            self.account.late = await self._quiet_holdings()
            await self._stop()
        finally:
            self.target.close()
        return self.account

    @property
    def _share(self) -> float:
        """Of the time that has passed."""
        return (time.monotonic() - self._began_s) / self.seconds

    # -- clients

    async def _ask_on(self) -> None:
        """One client, which asks one question after the other."""
        while not self._over:
            await self._open.wait()
            question, manners = self._draw()
            stream = self.chance.random() < STREAMED
            cancelled = manners is PATIENT and self.chance.random() < CANCELLED
            self._asking += 1
            body = question.written(stream=stream)
            if cancelled:
                heard = await self._call_and_cancel(body)
            else:
                heard = await call(self._url, body, manners)
            self._asking -= 1
            entry = self.ledger.note(question, heard, stream=stream, cancelled=cancelled)
            if entry.end is End.LOST:
                print(f"lost: {question.name}: {entry.why}", flush=True)
            if entry.end is End.FAILED:
                await asyncio.sleep(float(heard.headers.get("retry-after", RETRY_S)))

    async def _call_and_cancel(self, body: dict[str, Any]) -> Heard:
        """Ask, and think better of it."""
        request_id = f"soak-{next(self._numbers)}"
        asking = asyncio.create_task(call(self._url, body, request_id=request_id))
        await asyncio.sleep(self.chance.uniform(0.001, 1))
        await cancel(self._url, request_id)
        return await asking

    def _draw(self) -> tuple[Question, Manners]:
        """What to ask, and how to behave."""
        behaviour = self.chance.random()
        if behaviour < 0.05:
            question = endless(spoken=self.chance.random() < 0.5)
            return question, Manners(deaf=True, leave_after_s=self.chance.uniform(0.5, 4))
        if behaviour < 0.15:
            question = endless(spoken=self.chance.random() < 0.5)
            return question, Manners(leave_after_s=self.chance.uniform(0.01, 2))
        question = self.chance.choice(QUESTIONS)
        if behaviour < 0.25:
            return question, Manners(leave_after_s=self.chance.uniform(0.001, 1))
        if behaviour < 0.3:
            return question, Manners(leave_after_events=self.chance.randint(1, 20))
        return question, PATIENT

    # -- harm

    async def _do_harm(self) -> None:
        """Kill each process in turn, each at least once, with smaller faults in between."""
        for number, victim in enumerate(self._victims()):
            if number >= len(VICTIMS) and self._share >= FAULTS_UNTIL:
                return
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            await self._disturb()
            if victim != SERVER:
                await self._kill_stage(victim)
            elif number < len(VICTIMS) or self._share < SERVER_KILLS_UNTIL:
                await self._kill_server()

    def _victims(self) -> Iterator[str]:
        """Every process once before any comes again; the server itself first."""
        yield SERVER
        yield from self.chance.sample(STAGES, len(STAGES))
        while True:
            yield from self.chance.sample(VICTIMS, len(VICTIMS))

    async def _disturb(self) -> None:
        """What fails nothing: a process that stands still, and strangers on its socket."""
        process, pid = self.chance.choice(sorted(self.target.processes().items()))
        send_noise(self.target.sockets()[process])
        send_malformed(self.target.sockets()[process])
        with stopped(pid):
            await asyncio.sleep(self.chance.uniform(*STILL_S))

    async def _kill_stage(self, victim: str) -> None:
        stage = _a_stage_of(self.target, victim)
        before = self.target.health()["stages"][stage]["restarts"]
        fault = Fault(kind="kill", process=victim, began_s=time.monotonic())
        self.ledger.faults.append(fault)
        fault.began_s = kill(self.target.processes()[victim])

        def is_back() -> bool:
            health = self.target.health()
            again = health["stages"][stage]["restarts"] > before
            return bool(health["status"] == "ready" and again)

        await asyncio.to_thread(until, is_back, READY_S, f"{victim} is ready again")
        fault.over_s = time.monotonic()

    async def _kill_server(self) -> None:
        fault = Fault(kind="kill", process=SERVER, began_s=time.monotonic())
        self.ledger.faults.append(fault)
        fault.began_s = kill(self.target.pid)
        dead = self.target
        await asyncio.to_thread(dead.wait)
        await asyncio.to_thread(
            until, lambda: not left_behind(dead.pid), GONE_S, "nothing of the server is left"
        )
        self.target = await self._start()
        fault.over_s = time.monotonic()

    # -- the server

    async def _start(self) -> Target:
        target = start(self.checkpoint, "--port", str(self.port), *LAYOUT)
        await asyncio.to_thread(target.wait_ready)
        return target

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _quiet_holdings(self) -> Holdings:
        """What the server holds once every client has gone.

        A loop holds its last piece of work until the next: the same question comes last each time.
        """
        self._open.clear()
        while self._asking:
            await asyncio.sleep(PAUSE_S[0])
        await answers(self._url, [LAST])
        with suppress(AssertionError):  # what is still busy then, the account tells
            await asyncio.to_thread(until, lambda: not self._busy(), QUIET_S, "quiet")
        self.account.held |= self._busy()
        self.account.slots.append(self.target.counter("omni_relay_slots_used"))
        self._open.set()
        return holdings(self.target.pid)

    def _busy(self) -> dict[str, float]:
        return {
            f"{stage}.{name}": value
            for (stage, name), value in self.target.gauges().items()
            if name in BUSY and value
        }

    async def _stop(self) -> None:
        self.target.signal(signal.SIGTERM)
        self.account.exit_code = await asyncio.to_thread(self.target.wait)
        self.account.left = left_behind(self.target.pid)


def _a_stage_of(target: Target, process: str) -> str:
    """Any stage that lives in a process."""
    pid = target.processes()[process]
    stages: dict[str, dict[str, int]] = target.health()["stages"]
    return next(name for name, stage in stages.items() if stage["pid"] == pid)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def main(arguments: list[str]) -> int:
    """Print the account; 1 if any of its numbers is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of load (default 600)")
    parser.add_argument("--clients", type=int, default=6, help="that ask at once (default 6)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the account there")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as workshop:
        checkpoint = str(Path(workshop, "tiny"))
        build(checkpoint, seed=0)
        soak = Soak(
            checkpoint=checkpoint,
            seconds=options.seconds,
            clients=options.clients,
            chance=random.Random(options.seed),
            port=_free_port(),
        )
        rows = asyncio.run(soak.run()).rows(soak.ledger)
    print(table(rows))
    if options.json is not None:
        about = {"seconds": options.seconds, "clients": options.clients, "seed": options.seed}
        options.json.write_text(kept(rows, **about))
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
