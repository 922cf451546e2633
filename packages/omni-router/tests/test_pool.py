"""What is launched: addresses, cards, keys and logs, without launching it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omni_router.errors import ConfigError
from omni_router.keys import Keys
from omni_router.pool import Launch, launches, with_keys_for_workers
from omni_router.settings import Settings, WorkerSpec

COMMAND = ("omni", "serve")


def of(tmp_path: Path, keys: Keys | None = None, **settings: object) -> tuple[Launch, ...]:
    """What these settings launch."""
    asked = replace(Settings(launch=3, log_dir=str(tmp_path)), **settings)  # type: ignore[arg-type]
    environment = {"PATH": "/bin", "OMNI_API_KEYS": "theirs", "OMNI_WORKER_ADMIN_KEY": "ours"}
    return launches(asked, keys or Keys(), environment, COMMAND)


def test_each_has_a_loopback_port_of_its_own(tmp_path: Path) -> None:
    found = of(tmp_path, launch_arguments=("--model-path", "DIR"))
    assert [one.spec.name for one in found] == ["worker-0", "worker-1", "worker-2"]
    assert len({one.spec.url for one in found}) == 3
    for one in found:
        port = one.spec.url.removeprefix("http://127.0.0.1:")
        address = ("--host", "127.0.0.1", "--port", port)
        assert one.command == (*COMMAND, "--model-path", "DIR", *address)
        assert 10_000 <= int(port) < 32_000


def test_cards_are_given_out_in_order(tmp_path: Path) -> None:
    found = of(tmp_path, gpus=("4", 5, "6+7"))
    cards = [one.environment["CUDA_VISIBLE_DEVICES"] for one in found]
    assert cards == ["4", "5", "6,7"]
    assert all("CUDA_VISIBLE_DEVICES" not in one.environment for one in of(tmp_path))


def test_our_keys_for_workers_are_not_in_their_environment(tmp_path: Path) -> None:
    found = of(tmp_path, Keys(worker="our-key"))[0].environment
    assert found == {"PATH": "/bin", "OMNI_API_KEYS": "theirs,our-key"}


def test_a_key_is_drawn_where_workers_need_one_and_we_have_none() -> None:
    drawn = with_keys_for_workers(Keys(), {"OMNI_API_KEYS": "theirs"})
    assert drawn.worker is not None
    assert len(drawn.worker) == 64
    assert drawn.worker_admin is None
    assert with_keys_for_workers(Keys(worker="k"), {"OMNI_API_KEYS": "theirs"}).worker == "k"
    assert with_keys_for_workers(Keys(), {}) == Keys()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gpus": ("0", "1")}, "--gpus has 2 entries, and --launch starts 3 workers"),
        ({"launch_arguments": ("--port=1",)}, "--port=1 behind -- is for the router to choose"),
        ({"launch_arguments": ("--host", "::")}, "--host behind -- is for the router to choose"),
        (
            {"workers": (WorkerSpec(url="http://a", name="worker-2"),)},
            "--launch names its workers worker-2 and so on",
        ),
        ({"log_dir": "/proc/logs"}, "--log-dir: /proc/logs cannot be written to"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, settings: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match="^" + told.replace("(", r"\(")):
        of(tmp_path, **settings)


def test_the_last_words_are_the_end_of_the_log(tmp_path: Path) -> None:
    (one, *_) = of(tmp_path)
    assert "No such file" in one.last_words()
    one.log.write_bytes(b"early \xff\n" * 9000 + b"".join(b"line %d\n" % n for n in range(30)))
    told = one.last_words()
    assert f"see what is wrong in {one.log}" in told
    assert told.endswith("\n  | line 29")
    assert told.count("\n") == 20
