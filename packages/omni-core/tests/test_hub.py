"""Hub ids become directories: the real huggingface_hub against a hub on a loopback port."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_core.hub import checkpoint_directory, model_name

pytest.importorskip("huggingface_hub")

REPO = "lab/parrot"
FILES = {
    "config.json": b'{"architectures": ["Parrot"]}',
    "model.safetensors": b"not read here",
    "chat_template.jinja": b"{{ messages }}",
    "merges.txt": b"a b",
    "README.md": b"# not needed",
    "pytorch_model.bin": b"not needed either",
}
COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@dataclass
class Hub:
    """Answers the few calls that a snapshot takes, and remembers which files were asked for."""

    served: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if found := re.fullmatch(rf"/api/models/{REPO}(?:/(revision|tree)/([^/?]+))?(\?.*)?", path):
            commit = COMMITS.get(found[2] or "main", found[2])
            if commit not in COMMITS.values():
                return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
            if found[1] == "tree":
                return 200, {}, json.dumps([entry(name) for name in FILES]).encode()
            siblings = [{"rfilename": name} for name in FILES]
            document = {"id": REPO, "sha": commit, "siblings": siblings}
            return 200, {}, json.dumps(document).encode()
        if found := re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", path):
            name = found[2]
            self.served.append(name)
            headers = {"ETag": f'"{oid(name)}"', "X-Repo-Commit": found[1]}
            return 200, headers, FILES[name]
        if path.startswith("/api/models/lab/locked"):
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"


def oid(name: str) -> str:
    return hashlib.sha1(FILES[name]).hexdigest()


def entry(name: str) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(FILES[name]), "oid": oid(name)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def resolve(
    model: str, home: Path, *, hub: Hub | None = None, weights: bool = True
) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its settings when it is imported."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("HF_")},
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        **({"HF_HUB_OFFLINE": "1"} if hub is None else {"HF_ENDPOINT": hub.url}),
    }
    script = (
        "import sys\nfrom omni_core.errors import ConfigError\n"
        "from omni_core.hub import checkpoint_directory\n"
        "try:\n    print(checkpoint_directory(sys.argv[1], weights=bool(sys.argv[2])))\n"
        "except ConfigError as error:\n    sys.exit('REFUSED ' + error.message)\n"
    )
    command = [sys.executable, "-c", script, model, "yes" if weights else ""]
    return subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_snapshot_holds_only_what_a_checkpoint_needs(hub: Hub, tmp_path: Path) -> None:
    done = resolve(REPO, tmp_path, hub=hub)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.strip())
    names = {"config.json", "model.safetensors", "chat_template.jinja", "merges.txt"}
    assert {path.name for path in directory.iterdir()} == names
    assert set(hub.served) == names
    assert (directory / "config.json").read_bytes() == FILES["config.json"]
    assert directory.name == COMMITS["main"]


def test_a_checkpoint_is_described_without_its_weights(hub: Hub, tmp_path: Path) -> None:
    done = resolve(REPO, tmp_path, hub=hub, weights=False)
    assert done.returncode == 0, done.stderr
    assert set(hub.served) == {"config.json", "chat_template.jinja", "merges.txt"}


def test_a_revision_is_what_is_asked_for_and_offline_mode_finds_it(
    hub: Hub, tmp_path: Path
) -> None:
    online = resolve(f"{REPO}@v2", tmp_path, hub=hub)
    assert Path(online.stdout.strip()).name == COMMITS["v2"], online.stderr
    offline = resolve(f"{REPO}@v2", tmp_path)
    assert offline.stdout == online.stdout
    other = resolve(f"{REPO}@main", tmp_path)
    assert other.stderr.startswith("REFUSED"), "only v2 is in the cache"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (f"{REPO}@v9", "no such revision"),
        ("lab/unheard-of", "no such repository"),
        ("lab/locked", "terms accepted"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_sentence(
    hub: Hub, tmp_path: Path, model: str, says: str
) -> None:
    done = resolve(model, tmp_path, hub=hub)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("REFUSED"))
    assert says in line
    assert repr(model) in line


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network_the_way_out_is_said(tmp_path: Path, offline: bool) -> None:
    nobody = Hub(url="http://127.0.0.1:9")  # the discard port: nothing listens
    done = resolve(REPO, tmp_path, hub=None if offline else nobody)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("REFUSED"))
    assert f"hf download {REPO}" in line
    assert "HF_HUB_OFFLINE" in line


def test_what_exists_here_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(REPO).mkdir(parents=True)
    assert checkpoint_directory(REPO) == REPO
    assert checkpoint_directory(str(tmp_path)) == str(tmp_path)
    assert model_name(REPO) == "parrot"


@pytest.mark.parametrize("model", ["nowhere", "/no/where/at/all", "./lab/parrot", "a/b/c", "a/b@"])
def test_what_is_neither_here_nor_a_hub_id_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="neither a directory here nor a hub id"):
        checkpoint_directory(model)


def test_a_model_of_the_hub_is_called_by_its_id() -> None:
    assert model_name("lab/parrot@v2") == "lab/parrot"
