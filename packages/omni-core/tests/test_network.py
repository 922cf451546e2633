"""Stages on other hosts: over loopback, and between network namespaces where these may be made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zmq

from omni_core import curve
from omni_core.codec import Codec, batch
from omni_core.coordinator import links
from omni_core.curve import read_secret
from omni_core.errors import ConfigError, StageDiedError
from omni_core.messages import PROTOCOL_VERSION, Hello
from omni_core.pipeline import Network, Pipeline
from omni_core.stage import guest as guest_module
from omni_core.testing import echo
from omni_core.types import (
    AudioDelta,
    Finished,
    Message,
    Request,
    RequestParams,
    TextDelta,
    TextPart,
)

GUEST = """
import logging, sys
from pathlib import Path
from omni_core.stage.guest import Invitation, serve_as_guest

process, coordinator, secret_file = sys.argv[1:]
logging.basicConfig(format="%(levelname)s %(message)s")
invitation = Invitation(
    process=process, coordinator=coordinator, secret_file=Path(secret_file)
)
sys.exit(serve_as_guest(invitation))
"""
SOON_S = 20.0
AT_ONCE_S = 3.0
ECHO = "one two three"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Where the coordinator listens, and how a command is run on the other host."""

    address: str
    elsewhere: tuple[str, ...] = ()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "secret", "correct horse battery staple, twice over")


def write_secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def loopback() -> Hosts:
    return Hosts(address=f"tcp://127.0.0.1:{free_port()}")


@pytest.fixture
def loopback6() -> Hosts:
    try:
        return Hosts(address=f"tcp://[::1]:{free_port('::1')}")
    except OSError as exc:
        pytest.skip(f"there is no IPv6 here: {exc}")


def load(
    path: Path,
    hosts: Hosts,
    secret: Path,
    guests: Sequence[str] = ("voice",),
    watchdog_timeout_s: float | None = None,
) -> Pipeline:
    return Pipeline.load(
        echo.write_checkpoint(path / "model"),
        plugins=echo.plugins(),
        device="cpu",
        network=Network(listen=hosts.address, secret_file=secret, guests=tuple(guests)),
        watchdog_timeout_s=watchdog_timeout_s,
    )


@asynccontextmanager
async def guest(hosts: Hosts, secret: Path, process: str = "voice") -> AsyncIterator[Process]:
    command = [*hosts.elsewhere, sys.executable, "-c", GUEST, process, hosts.address, str(secret)]
    started = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


def dial_in(hosts: Hosts, secret: Path, address: str) -> None:
    """As a guest does that says to be reached there, and is not heard of again."""
    hello = Hello(version=PROTOCOL_VERSION, process="voice", pid=1, address=address, guest=True)
    with zmq.Context() as context, context.socket(zmq.PUSH) as line:
        read_secret(secret).join(line)
        line.connect(hosts.address)
        line.send(batch(Codec().encode(hello)))
        line.close(linger=int(1000 * SOON_S))


async def last_words(process: Process) -> str:
    async with asyncio.timeout(SOON_S):
        output, _ = await process.communicate()
    return output.decode()


async def ask(pipeline: Pipeline, text: str) -> tuple[str, np.ndarray, Finished]:
    request = Request(
        messages=(Message(role="user", content=(TextPart(text=text),)),),
        params=RequestParams(modalities=("text", "audio")),
    )
    events = [event async for event in pipeline.generate(request)]
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    heard = [event.samples for event in events if isinstance(event, AudioDelta)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return said, np.concatenate(heard), finished


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_stage_on_another_host_serves_like_one_of_this_host(
    tmp_path: Path, loopback: Hosts, secret: Path
) -> None:
    async with guest(loopback, secret) as voice:
        async with load(tmp_path, loopback, secret) as pipeline:
            said, heard, finished = await ask(pipeline, ECHO)
            assert said == "one two three "
            assert heard.shape == (3 * echo.SAMPLES_PER_WORD,)
            [voiced] = [span for span in finished.timeline if span.stage == "voice"]
            assert -AT_ONCE_S < voiced.start_s <= voiced.end_s < SOON_S, "not our clock"
            assert pipeline.health().status == "ready"
            assert pipeline.health().stages["voice"].pid == 0, "no process of this host"
        assert await asyncio.wait_for(voice.wait(), SOON_S) == 0, "asked to leave"


async def test_over_ipv6(tmp_path: Path, loopback6: Hosts, secret: Path) -> None:
    async with guest(loopback6, secret), load(tmp_path, loopback6, secret) as pipeline:
        said, heard, _ = await ask(pipeline, "one big word")  # from a stage here to the guest
        assert said == "one big word "
        assert heard.shape == (3 * echo.SAMPLES_PER_WORD,)


async def test_all_stages_elsewhere_and_a_tensor_of_megabytes(
    tmp_path: Path, loopback: Hosts, secret: Path
) -> None:
    processes = ("intake", "writer", "voice")
    async with contextlib.AsyncExitStack() as stack:
        for process in processes:
            await stack.enter_async_context(guest(loopback, secret, process))
        pipeline = await stack.enter_async_context(
            Pipeline.load(
                echo.write_checkpoint(tmp_path / "model"),
                plugins=echo.plugins(),
                device="cpu",
                layout="per-stage",
                network=Network(listen=loopback.address, secret_file=secret, guests=processes),
            )
        )
        said, *_ = await ask(pipeline, "a big one")  # the writer checks the tensor
        assert said == "a big one "


async def test_a_guest_that_is_gone_fails_its_requests_and_the_next_takes_its_place(
    tmp_path: Path, loopback: Hosts, secret: Path
) -> None:
    async with guest(loopback, secret) as first, load(tmp_path, loopback, secret) as pipeline:
        asked = asyncio.create_task(ask(pipeline, "hang"))
        await until(lambda: pipeline.occupancy().in_flight == 1)
        killed = time.monotonic()
        first.kill()
        with pytest.raises(StageDiedError, match="connection broke"):
            await asked
        assert time.monotonic() - killed < AT_ONCE_S
        assert pipeline.health().status == "degraded"
        async with guest(loopback, secret):
            await until(lambda: pipeline.health().status == "ready")
            said, *_ = await ask(pipeline, ECHO)
            assert said == "one two three "


async def test_a_guest_that_cannot_be_reached_does_not_keep_its_place(
    tmp_path: Path, loopback: Hosts, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died once it had dialled in, or its address is closed to us: nothing breaks then."""
    monkeypatch.setattr(links, "_CALL_S", 0.3)
    async with guest(loopback, secret) as first, load(tmp_path, loopback, secret) as pipeline:
        first.kill()
        await until(lambda: pipeline.health().stages["voice"].restarts == 1)
        dial_in(loopback, secret, f"tcp://127.0.0.1:{free_port()}")
        await until(lambda: pipeline.health().stages["voice"].restarts == 2)
        assert pipeline.health().stages["voice"].last_death == "connection"
        async with guest(loopback, secret):
            await until(lambda: pipeline.health().status == "ready")


def test_a_guest_that_nobody_answers_says_what_to_do(
    loopback: Hosts,
    secret: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(guest_module, "_ANSWER_S", 0.1)
    with zmq.Context() as context, context.socket(zmq.PULL) as coordinator:
        read_secret(secret).guard(coordinator)
        coordinator.bind(loopback.address)
        invitation = guest_module.Invitation(
            process="voice", coordinator=loopback.address, secret_file=secret
        )
        assert guest_module.serve_as_guest(invitation) == 1
    assert re.search(r"connect to us at tcp://127.0.0.1:\d+: open that", caplog.text)


@pytest.mark.parametrize("found_by", ["heartbeat", "watchdog"])
async def test_a_guest_that_stands_still_is_as_good_as_gone(
    tmp_path: Path,
    loopback: Hosts,
    secret: Path,
    monkeypatch: pytest.MonkeyPatch,
    found_by: str,
) -> None:
    if found_by == "heartbeat":
        monkeypatch.setattr(curve, "_HEARTBEAT_MS", 200)
        monkeypatch.setattr(curve, "_SILENCE_MS", 1000)
    watchdog_timeout_s = 3.0 if found_by == "watchdog" else None
    pipeline = load(tmp_path, loopback, secret, watchdog_timeout_s=watchdog_timeout_s)
    async with guest(loopback, secret) as voice, pipeline:
        asked = asyncio.create_task(ask(pipeline, "hang"))
        await until(lambda: pipeline.occupancy().in_flight == 1)
        voice.send_signal(signal.SIGSTOP)
        with pytest.raises(StageDiedError):
            await asyncio.wait_for(asked, SOON_S)
        cause = "connection" if found_by == "heartbeat" else "hang"
        assert pipeline.health().stages["voice"].last_death == cause
        voice.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(voice.wait(), SOON_S) == 1, "it learns of it, and leaves"


async def test_a_guest_leaves_when_the_coordinator_is_gone(
    tmp_path: Path, loopback: Hosts, secret: Path
) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from omni_core.pipeline import Network, Pipeline\n"
        "from omni_core.testing import echo\n"
        "model, address, secret = sys.argv[1:]\n"
        "network = Network(listen=address, secret_file=Path(secret), guests=('voice',))\n"
        "async def main():\n"
        "    async with Pipeline.load(model, plugins=echo.plugins(), device='cpu',\n"
        "                             network=network):\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    model = echo.write_checkpoint(tmp_path / "model")
    command = [sys.executable, "-c", script, model, loopback.address, str(secret)]
    coordinator = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    async with guest(loopback, secret) as voice:
        assert coordinator.stdout is not None
        assert await asyncio.wait_for(coordinator.stdout.readline(), SOON_S) == b"ready\n"
        coordinator.send_signal(signal.SIGKILL)
        assert "broke" in await last_words(voice)
        assert voice.returncode == 1
    await coordinator.wait()


async def test_a_guest_with_another_secret_is_not_let_in_and_told_so(
    tmp_path: Path, loopback: Hosts, secret: Path
) -> None:
    other = write_secret(tmp_path / "other", "another secret, of somebody else, as long")
    async with (
        guest(loopback, secret),
        load(tmp_path, loopback, secret) as pipeline,
        guest(loopback, other) as stranger,
    ):
        assert "did not let us in" in await last_words(stranger)
        assert stranger.returncode == 1
        assert pipeline.health().status == "ready"


async def test_a_guest_nobody_waits_for_is_turned_away_with_the_reason(
    tmp_path: Path, loopback: Hosts, secret: Path
) -> None:
    async with guest(loopback, secret), load(tmp_path, loopback, secret) as pipeline:
        for process, reason in (("voice", "already"), ("front", "awaited are: voice")):
            async with guest(loopback, secret, process) as stranger:
                assert reason in await last_words(stranger)
                assert stranger.returncode == 1
        assert (await ask(pipeline, ECHO))[0] == "one two three "


def test_a_network_without_a_secret_is_refused(tmp_path: Path, loopback: Hosts) -> None:
    pipeline = load(tmp_path, loopback, tmp_path / "nothing")

    async def enter() -> None:
        async with pipeline:
            pass

    with pytest.raises(ConfigError, match=r"secret file .* cannot be read"):
        asyncio.run(enter())


def test_everything_that_is_wrong_with_a_network_is_said_at_once(tmp_path: Path) -> None:
    network = Network(listen="7000", secret_file=tmp_path, guests=("voice", "choir"))
    with pytest.raises(ConfigError) as caught:
        network.keys(["front", "voice"])
    assert len(caught.value.problems) == 2
    assert "'choir' is no process; there are front, voice" in str(caught.value)


# -- two hosts


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    """This network namespace and another, joined by a cable."""
    name = f"omni{os.getpid()}"
    near, far = f"on{os.getpid() % 10_000}", f"of{os.getpid() % 10_000}"
    steps = [
        f"netns add {name}",
        f"link add {near} type veth peer name {far} netns {name}",
        f"addr add 10.213.77.1/30 dev {near}",
        f"link set {near} up",
        f"-n {name} addr add 10.213.77.2/30 dev {far}",
        f"-n {name} link set {far} up",
    ]
    try:
        for step in steps:
            done = subprocess.run(["ip", *step.split()], capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        yield Hosts(
            address=f"tcp://10.213.77.1:{free_port()}",
            elsewhere=("ip", "netns", "exec", name),
        )
    except FileNotFoundError:
        pytest.skip("network namespaces cannot be made here: there is no command 'ip'")
    finally:
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


async def test_between_two_hosts(tmp_path: Path, two_hosts: Hosts, secret: Path) -> None:
    async with guest(two_hosts, secret), load(tmp_path, two_hosts, secret) as pipeline:
        said, heard, _ = await ask(pipeline, ECHO)
        assert said == "one two three "
        assert heard.shape == (3 * echo.SAMPLES_PER_WORD,)
