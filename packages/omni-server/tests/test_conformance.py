"""The server keeps the laws of the kit, over real stages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from omni_core.testing import echo
from omni_core.testing.suites import RouteSuite
from omni_server.cli.serve import READY

PLUGIN = "from omni_core.testing.echo import register_pipelines\n__all__ = ['register_pipelines']\n"


class TestRoutes(RouteSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def client(cls, tmp_path_factory):
        root = tmp_path_factory.mktemp("site")
        (root / "omni_echo_for_routes.py").write_text(PLUGIN)
        info = root / "omni_echo_for_routes-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: omni-echo\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[omni.plugins]\necho = omni_echo_for_routes\n")
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "omni_server", "serve", "--port", "0", "--compile", "off"]
        command += ["--model-path", echo.write_checkpoint(root / "echo-model")]
        environment = {**os.environ, "PYTHONPATH": path, "OMNI_PLUGINS": "echo"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            url = next(line for line in process.stdout if line.startswith(READY))
            with httpx.Client(base_url=url.removeprefix(READY).strip(), timeout=30) as client:
                yield client
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0

    @pytest.fixture
    def body(self):
        messages = [{"role": "user", "content": "one two three"}]
        return {"model": "echo-model", "messages": messages}
