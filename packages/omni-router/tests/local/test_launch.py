"""Workers that the router starts: cards, logs, new lives, and an end with it whatever ends it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY, ADMIN = "a-key-of-clients", "a-key-of-operators"
Launched = Callable[..., Any]


def test_a_worker_that_dies_is_started_again_under_its_name(
    launched: Launched, tmp_path: Path
) -> None:
    keys = {"OMNI_API_KEYS": KEY, "OMNI_ADMIN_KEY": ADMIN, "OMNI_WORKER_KEY": "between-us"}
    own = ("--launch", "2", "--gpus", "0+1,3", "--log-dir", str(tmp_path / "logs"))
    with launched(*own, "--", "--says", "hello", "--has-a-child", **keys) as router:
        router.until(lambda: router.are_ready("worker-0", "worker-1"), "both are ready")
        seen = [router.chat() for _ in range(8)]
        by_card = {one["environment"]["CUDA_VISIBLE_DEVICES"]: one["pid"] for one in seen}
        assert set(by_card) == {"0,1", "3"}
        assert all(one["environment"]["OMNI_API_KEYS"] == f"{KEY},between-us" for one in seen)
        assert all(one["environment"]["OMNI_WORKER_KEY"] is None for one in seen)
        assert all(one["arguments"][:3] == ["serve", "--says", "hello"] for one in seen)

        log = tmp_path / "logs" / "worker-0.log"
        its_child = int(re.findall(r"child (\d+)", log.read_text())[0])
        os.kill(by_card["0,1"], signal.SIGKILL)
        assert {router.chat()["pid"] for _ in range(4)} <= {by_card["3"], by_card["0,1"]}
        router.until(lambda: router.are_gone([its_child]), "what a dead worker has left is killed")
        again = router.until(
            lambda: {one["pid"] for one in [router.chat() for _ in range(4)]} - {*by_card.values()},
            "its next life answers",
        )
        assert "serve" in router.command_of(again.pop())
        workers = router.ask("/router/v1/workers", is_admin=True)["workers"]
        assert {one["name"]: one["epoch"] for one in workers} == {"worker-0": 2, "worker-1": 1}
        assert all(router.children().values())  # nothing that has ended is left unburied
        assert log.read_text().count("--- worker-0 starts") == 2
        assert log.stat().st_mode & 0o077 == 0
        assert "worker-0 has ended: killed by signal 9" in router.said()

        children = router.children()
        assert router.end(signal.SIGTERM) == 0
        assert router.are_gone(children)
        assert "it has ended in order" in log.read_text()


def test_sigkill_of_the_router_takes_its_workers_with_it(launched: Launched) -> None:
    with launched("--launch", "2", "--", "--ignores-sigterm") as router:
        router.until(lambda: router.are_ready("worker-0", "worker-1"), "both are ready")
        children = router.children()
        assert len(children) == 3
        router.process.kill()
        began_s = time.monotonic()
        router.until(lambda: router.are_gone(children), "all have ended")
        assert time.monotonic() - began_s < 2


def test_a_worker_that_hangs_is_killed_and_started_again(
    launched: Launched, tmp_path: Path
) -> None:
    with launched("--launch", "1", "--log-dir", str(tmp_path)) as router:
        router.until(lambda: router.are_ready("worker-0"), "it is ready")
        log = tmp_path / "worker-0.log"
        router.until(lambda: "asked whether it lives" in log.read_text(), "it has said so")
        hung = router.chat()["pid"]
        os.kill(hung, signal.SIGSTOP)
        router.until(lambda: router.answers() and router.chat()["pid"] != hung, "the next answers")
        assert "worker-0 has not answered for " in router.said()
        assert "worker-0 has ended: killed by signal 9" in router.said()


def test_a_second_signal_kills_what_does_not_end(launched: Launched) -> None:
    with launched("--launch", "1", "--", "--ignores-sigterm") as router:
        router.until(lambda: router.are_ready("worker-0"), "it is ready")
        children = router.children()
        assert router.end(signal.SIGINT, signal.SIGINT) == 130
        assert router.are_gone(children)


def test_a_crash_loop_ends_with_the_last_lines_of_the_log(
    launched: Launched, tmp_path: Path
) -> None:
    own = ("--launch", "1", "--log-dir", str(tmp_path))
    words = ("--", "--dies-after", "0", "--says", "there is no such checkpoint")
    with launched(*own, *words, fails=True) as router:
        assert router.process.wait(30) == 1
        said = router.said()
        assert said.count("worker-0 has ended: exit status 3") == 4
        assert (
            "worker-0 keeps dying: exit status 3; next try in 60 s; see what is wrong in " in said
        )
        assert "  | there is no such checkpoint\n" in said


def test_a_crash_loop_of_one_leaves_the_others_alone(
    launched: Launched, plain_worker: Callable[..., str]
) -> None:
    url = plain_worker()
    with launched("--worker", url, "--launch", "1", "--", "--dies-after", "0") as router:
        router.until(lambda: "worker-0 keeps dying" in router.said(), "it is given up for a while")
        assert router.chat()["pid"]
        assert router.end(signal.SIGTERM) == 0
