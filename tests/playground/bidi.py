"""Firefox by WebDriver BiDi over its own port: Debian has no geckodriver, and none is needed.

Knows the few commands that the tests use. Its microphone is Firefox's own fake, a tone; without a
loudspeaker Firefox runs no sound at all, so pulseaudio pretends to be one.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PREFERENCES = {
    "media.navigator.streams.fake": True,
    "media.navigator.permission.disabled": True,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
}
LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
PATIENCE_S = 60.0


class Firefox:
    """One page, and all that its console said."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.said: list[str] = []
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=["log.entryAdded"])
        tree = self.command("browsingContext.getTree")
        self.context = tree["contexts"][0]["context"]

    def command(self, method: str, **params: Any) -> Any:
        """The result of a command; RuntimeError if it is refused."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if message.get("method") == "log.entryAdded":
                self.said.append(message["params"]["text"])
            elif message.get("id") == number:
                if message["type"] == "error":
                    raise RuntimeError(f"{method}: {message['error']}: {message['message']}")
                return message["result"]

    def go(self, url: str) -> None:
        """Open a page and wait until it is there."""
        self.command("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value, of a plain type; as a click would, for sound and microphones want one."""
        found = self.command(
            "script.evaluate",
            expression=expression,
            target={"context": self.context},
            awaitPromise=True,
            userActivation=True,
        )
        if found["type"] != "success":
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until it holds in the page."""
        end = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({condition})"):
            shown = self.evaluate("document.body.innerText")
            assert time.monotonic() < end, f"never: {condition}; the page shows:\n{shown}"
            time.sleep(0.1)


@contextmanager
def pretended_loudspeaker(folder: Path) -> Iterator[dict[str, str]]:
    """The variables of programs that play into nothing; none where there is no pulseaudio."""
    if shutil.which("pulseaudio") is None:
        yield {}
        return
    socket = folder / "loudspeaker"
    loads = ("module-null-sink", f"module-native-protocol-unix socket={socket} auth-anonymous=1")
    options = [option for module in loads for option in ("--load", module)]
    command = ["pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", *options]
    own = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    with subprocess.Popen(command, env=os.environ | own, stderr=subprocess.DEVNULL) as process:
        try:
            yield {"PULSE_SERVER": f"unix:{socket}"}
        finally:
            process.terminate()


@contextmanager
def firefox(program: str, profile: Path) -> Iterator[Firefox]:
    """A headless one with a new profile."""
    lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in PREFERENCES.items()]
    (profile / "user.js").write_text("\n".join(lines))
    command = [program, "--headless", "--no-remote", "--profile", str(profile)]
    with (
        pretended_loudspeaker(profile) as variables,
        subprocess.Popen(
            [*command, "--remote-debugging-port=0", "about:blank"],
            env=os.environ | variables,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        try:
            assert process.stderr is not None
            found = next(filter(None, map(LISTENS.search, process.stderr)), None)
            assert found is not None, f"{program} ended with {process.wait()}"
            with connect(f"{found[1]}/session", max_size=None) as socket:
                yield Firefox(socket)
        finally:
            process.kill()
