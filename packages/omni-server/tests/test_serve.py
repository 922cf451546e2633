"""`omni serve`: start-up, signals and shutdown, in this process and as a real one."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from omni_core.errors import ConfigError, StageError
from omni_core.pipeline import Health
from omni_core.testing import echo
from omni_server.app import server_context
from omni_server.cli.serve import READY, run
from omni_server.http import bind
from omni_server.settings import Settings

BACK_WITHIN_S = 30.0
WITHIN_S = 60.0


@pytest.fixture
def slow(kit):
    """A pipeline that starts when it is told to."""

    class SlowPipeline(kit.FakePipeline):
        def __init__(self):
            super().__init__()
            self.may_start = asyncio.Event()
            self.status = "starting"
            self.fails = False

        async def __aenter__(self):
            try:
                await self.may_start.wait()
            except asyncio.CancelledError:
                self.status = "closed"
                raise
            if self.fails:
                raise StageError("thinker: no such file")
            self.status = "ready"
            return self

        async def __aexit__(self, kind, error, traceback):
            self.status = "closed"

        def health(self):
            return Health(status=self.status, stages={})

    return SlowPipeline()


class Running:
    """`run` on a loopback port, with what it announced."""

    def __init__(self, pipeline, model):
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        listener = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = Settings(served_model_name=model)
        self.task = asyncio.create_task(
            run(server_context(pipeline, settings), listener, 5.0, self.ready.set_result)
        )
        self.http = httpx.AsyncClient(base_url=self.url, timeout=10, verify=False)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.http.aclose()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_port_answers_before_the_pipeline_is_ready(slow, kit):
    async with Running(slow, kit.MODEL) as server:
        response = await server.http.get("/health")
        assert response.status_code == 503
        assert response.json() == {"status": "starting", "stages": {}}
        response = await server.http.post("/v1/chat/completions", json=kit.hello())
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "not_ready"
        assert response.headers["retry-after"] == "1"
        assert not server.ready.done()
        slow.may_start.set()
        assert await server.ready == f"{READY}{server.url}"
        assert (await server.http.get("/health")).status_code == 200
        response = await server.http.post("/v1/chat/completions", json=kit.hello())
        assert response.status_code == 200


async def test_interrupted_while_starting(slow, kit):
    async with Running(slow, kit.MODEL) as server:
        assert (await server.http.get("/live")).status_code == 200
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(server.task, WITHIN_S)
        assert slow.status == "closed"
        assert not server.ready.done()


async def test_failing_to_start_ends_the_server_with_the_reason(slow, kit):
    slow.fails = True
    slow.may_start.set()
    async with Running(slow, kit.MODEL) as server:
        with pytest.raises(StageError, match="no such file"):
            await asyncio.wait_for(server.task, WITHIN_S)


async def test_interrupt_drains_open_streams_before_it_stops_the_pipeline(slow, kit):
    slow.may_start.set()
    gate = asyncio.Event()

    def script(request):
        first, *rest = kit.default_script(request)
        return [first, gate, *rest]

    slow.script = script
    async with Running(slow, kit.MODEL) as server:
        await server.ready
        body = {**kit.hello(), "stream": True}
        async with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if '"content":"Hé"' in line:
                    break
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(draining(server.http), WITHIN_S)
            late = await server.http.post("/v1/chat/completions", json=kit.hello())
            assert (late.status_code, late.headers["retry-after"]) == (503, "1")
            assert late.json()["error"]["code"] == "draining"
            assert (await server.http.get("/health")).status_code == 200
            assert slow.status == "ready"
            gate.set()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        await asyncio.wait_for(server.task, WITHIN_S)
        assert slow.status == "closed"


async def draining(http):
    """Return once a server says that it lets nobody in any more."""
    while True:
        response = await http.get("/ready")
        if response.json()["status"] == "draining":
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            return


def test_a_busy_port_is_named():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*--port"):
            bind("127.0.0.1", port)


@pytest.fixture(scope="module")
def echo_environment(tmp_path_factory):
    """An environment in which the echo pipeline is an installed plugin; and its checkpoint."""
    root = tmp_path_factory.mktemp("echo")
    info = root / "site" / "echo_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni.plugins]\necho = omni_core.testing.echo\n")
    path = os.pathsep.join([str(root / "site"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMNI_PLUGINS": "echo"}
    return environment, echo.write_checkpoint(root / "echo-model")


def serve_command(checkpoint):
    command = [sys.executable, "-m", "omni_server", "serve", "--model-path", checkpoint]
    return [*command, "--port", "0", "--device", "cpu"]


class ServeProcess:
    """`omni serve` on the echo pipeline as a process of its own."""

    def __init__(self, environment, checkpoint, *options):
        self.process = subprocess.Popen(
            [*serve_command(checkpoint), *options],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        watchdog = threading.Timer(WITHIN_S, self.process.kill)
        watchdog.start()
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(READY):
                break
        watchdog.cancel()
        assert self.lines[-1].startswith(READY), "\n".join(self.lines)
        url = self.lines[-1].removeprefix(READY)
        self.http = httpx.Client(base_url=url, timeout=WITHIN_S, verify=False)
        self.stages = self.http.get("/health").json()["stages"]

    def back(self):
        """The stages, once all of them are ready again."""
        deadline = time.monotonic() + BACK_WITHIN_S
        while (response := self.http.get("/health")).status_code != 200:
            assert time.monotonic() < deadline, response.text
            time.sleep(0.01)
        assert response.json()["status"] == "ready"
        return response.json()["stages"]

    def chat(self, text, **body):
        messages = [{"role": "user", "content": text}]
        return self.http.post("/v1/chat/completions", json={"messages": messages, **body})

    @contextmanager
    def hang(self):
        """Lines of a stream that has said "hang" and never ends by itself."""
        body = {"messages": [{"role": "user", "content": "hang"}], "stream": True}
        with self.http.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()  # httpx hangs up when this is dropped
            next(line for line in lines if "hang" in line)
            yield lines

    def leaves_nothing(self):
        """Wait until no process of the server runs and none of its files is left."""
        deadline = time.monotonic() + WITHIN_S
        while (
            any(is_running(stage["pid"]) for stage in self.stages.values())
            or list(Path("/dev/shm").glob(f"omni-{self.process.pid}-*"))
        ):  # fmt: skip
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self, *signals):
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(WITHIN_S)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def broken(lines):
    """The events of a stream whose connection must break instead of ending."""
    events = []
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message"):
        events += (json.loads(line.removeprefix("data: ")) for line in lines if line)
    return events


def is_running(pid):
    """Whether a process exists and is not a zombie nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def served(echo_environment):
    """One server for the tests that leave it as they found it."""
    with ServeProcess(*echo_environment, "--voice.frames", "2") as server:
        yield server


def test_on_a_terminal_the_news_is_a_block_above_the_ready_line(echo_environment):
    environment, checkpoint = echo_environment
    master, slave = os.openpty()
    with subprocess.Popen(
        serve_command(checkpoint), stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"}
    ) as process:
        os.close(slave)
        shown = ""
        while READY not in shown:
            shown += os.read(master, 65536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0
    os.close(master)
    news, _, _ = shown.partition(READY)
    _, _, block = news.rpartition("\x1b[1A\x1b[2K")
    bare = re.sub(r"\x1b\[[?0-9]*[A-Za-z]", "", block)  # it is drawn but once if start-up is fast
    ready = [line.split()[0] for line in bare.splitlines() if "ready" in line]
    assert sorted(ready) == ["intake", "voice", "writer"]
    assert news.endswith("\x1b[?25h")


def test_stages_run_in_processes_of_their_own(served):
    assert set(served.stages) == {"intake", "writer", "voice"}
    assert {stage["state"] for stage in served.stages.values()} == {"ready"}
    assert served.process.pid not in {stage["pid"] for stage in served.stages.values()}
    for name in served.stages:
        assert any(line.startswith(f"{name}: ") for line in served.lines), served.lines


def test_the_model_is_named_after_its_directory(served):
    model = served.http.get("/v1/models").json()["data"][0]
    assert (model["id"], model["output_modalities"]) == ("echo-model", ["text", "audio"])


def test_replies_of_real_stages(served):
    reply = served.chat("one two three").json()
    assert reply["choices"][0]["message"]["content"] == "one two three "
    spoken = served.chat("one two", modalities=["audio"], audio={"voice": "ECHO"}).json()
    assert spoken["choices"][0]["message"]["audio"]["transcript"] == "one two "
    assert spoken["usage"]["completion_tokens_details"]["text_tokens"] == 2
    error = served.chat("fail:writer").json()["error"]
    assert (error["code"], error["type"]) == ("asked", "invalid_request_error")


def test_streamed_audio_of_real_stages_equals_the_unstreamed(served):
    text = " ".join(f"w{n}" for n in range(20))
    whole = served.chat(text, modalities=["audio"], audio={"format": "pcm16"}).json()
    stream = served.chat(text, modalities=["audio"], stream=True)
    chunks = [json.loads(line[6:]) for line in stream.text.splitlines() if '"data"' in line]
    audio = [chunk["choices"][0]["delta"]["audio"] for chunk in chunks]
    assert sum("id" in a for a in audio) <= 1
    joined = b"".join(base64.b64decode(a["data"]) for a in audio)
    assert joined == base64.b64decode(whole["choices"][0]["message"]["audio"]["data"])
    assert len(joined) == 2 * 20 * echo.SAMPLES_PER_WORD


def test_a_client_that_leaves_is_forgotten_by_the_stages(served):
    with served.hang():
        assert 'omni_stage_running{stage="writer"} 1.0' in served.http.get("/metrics").text
    left_at = time.monotonic()
    while 'omni_stage_running{stage="writer"} 0.0' not in served.http.get("/metrics").text:
        assert time.monotonic() - left_at < WITHIN_S
    assert served.chat("still here").status_code == 200


def test_a_dead_stage_fails_its_requests_at_once_and_comes_back(echo_environment):
    with ServeProcess(*echo_environment) as server:
        with server.hang() as lines:
            response = server.chat("die:writer")
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "stage_died"
            assert response.headers["retry-after"] == "1"
            degraded = server.http.get("/health")
            assert (degraded.status_code, degraded.json()["status"]) == (503, "degraded")
            refused = server.chat("too early")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert broken(lines)[-1]["error"]["code"] == "stage_died"
        back = server.back()
        assert back["writer"]["restarts"] == back["intake"]["restarts"] == 1
        assert back["writer"]["pid"] != server.stages["writer"]["pid"]
        assert back["voice"] == server.stages["voice"]
        assert server.chat("here again", modalities=["audio"]).status_code == 200


def test_a_stage_that_keeps_dying_stops_the_server_with_the_cause(echo_environment):
    with ServeProcess(*echo_environment) as server:
        deadline = time.monotonic() + WITHIN_S
        while server.process.poll() is None:
            assert time.monotonic() < deadline, server.http.get("/health").text
            time.sleep(0.01)
            try:
                if server.http.get("/health").status_code == 200:
                    server.chat("die:writer")
            except httpx.TransportError:
                break
        assert server.process.wait(WITHIN_S) == 1
        said = server.process.stdout.read()
        assert "error: stage process 'front@4' ended with code 3, after 4 others like it" in said
        assert "Traceback" not in said
        server.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_server_that_ends(echo_environment, number):
    with ServeProcess(*echo_environment) as server:
        assert server.stop(number) == (0 if number == signal.SIGTERM else -number)
        server.leaves_nothing()


def test_draining_gives_up_after_its_timeout(echo_environment):
    with (
        ServeProcess(*echo_environment, "--drain-timeout-s", "1") as server,
        server.hang() as lines,
    ):
        with ThreadPoolExecutor(1) as other_client:
            whole = other_client.submit(server.chat, "hang")
            while 'running{stage="writer"} 2.0' not in server.http.get("/metrics").text:
                time.sleep(0.01)
            assert server.stop(signal.SIGINT) == 0
            assert broken(lines)[-1]["error"]["code"] == "not_ready"
            assert whole.result().status_code == 503
            assert whole.result().json()["error"]["code"] == "not_ready"
        assert not any(is_running(stage["pid"]) for stage in server.stages.values())
        assert "Traceback" not in server.process.stdout.read()


def test_a_second_interrupt_kills(echo_environment):
    with ServeProcess(*echo_environment) as server, server.hang():
        server.process.send_signal(signal.SIGINT)
        while server.http.get("/ready").status_code != 503:
            pass
        assert server.stop(signal.SIGINT) == 130
        server.leaves_nothing()


def test_keys_reach_neither_stages_nor_logs_and_what_operators_may(echo_environment, tmp_path):
    environment, checkpoint = echo_environment
    access, keys = tmp_path / "access.log", tmp_path / "admin.keys"
    keys.write_text("root-key\n")
    keys.chmod(0o600)
    options = ["--access-log", str(access), "--admin-key-file", str(keys), "--rate-limit", "2"]
    options += ["--weights-dir", str(tmp_path / "more"), "--profile-dir", str(tmp_path)]
    echo.write_checkpoint(tmp_path / "more" / "step-2")
    (tmp_path / "more" / "step-2" / "weights.json").write_text('{"word": "!"}')
    with ServeProcess({**environment, "OMNI_API_KEYS": "user-key"}, checkpoint, *options) as server:
        assert server.chat("one").status_code == 401
        server.http.headers["authorization"] = "Bearer user-key"
        assert [server.chat("one").status_code for _ in range(3)] == [200, 200, 429]
        assert server.http.get("/admin/info").status_code == 403
        server.http.headers["authorization"] = "Bearer root-key"
        set_to = server.http.put("/admin/log-level", json={"level": "INFO"})
        assert set_to.json() == {"level": "INFO"}
        info = server.http.get("/admin/info").json()
        assert (info["checkpoint"], info["door"]["state"]) == ("echo-model", "open")
        asked = {"stage": "writer", "seconds": 0.1}
        profile = server.http.post("/admin/profile", json=asked).text.splitlines()
        assert profile
        assert all(re.fullmatch(r"front;[^;]+;.* \d+", line) for line in profile)
        assert any("stage-writer" in line and "Writer.run" in line for line in profile)
        pids = {stage["pid"] for stage in info["health"]["stages"].values()}
        for pid in pids:
            assert b"user-key" not in Path(f"/proc/{pid}/environ").read_bytes()
        loaded = server.http.post("/admin/weights", json={"path": "step-2", "revision": "r2"})
        assert (loaded.json()["checkpoint"], loaded.json()["revision"]) == ("step-2", "r2")
        assert server.chat("one").json()["choices"][0]["message"]["content"] == "one! "
        no_torch = server.http.post("/admin/profiler/start", json={"stages": ["voice"]})
        assert "voice: no stage of it uses torch" in no_torch.json()["error"]["message"]
        assert server.stop(signal.SIGTERM) == 0
        said = server.process.stdout.read()
    assert "logging from INFO on" in said
    logged = access.read_text()
    assert not re.search("user-key|root-key", said + logged)
    statuses = [json.loads(line)["status"] for line in logged.splitlines()]
    assert statuses == [200, 401, 200, 200, 429, 403, 200, 200, 200, 200, 200, 400]


def test_small_pieces_are_sent_at_once():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
