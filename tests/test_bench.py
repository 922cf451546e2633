"""The parts of the benches: how cases are judged and kept, the client, process trees, phases."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import run
import startup
from checkpoint import SPEECH_HEAD, TEXT_HEAD, build_endless
from client import Heard, ask
from crowd import chat_end
from omni_core.pipeline import Pipeline
from omni_core.types import (
    Event,
    Finished,
    Message,
    Request,
    RequestParams,
    SamplingParams,
    TextDelta,
    TextPart,
)
from processes import cpu_seconds, pss_bytes, tree
from recital import TEXTS, build_reciting, pieces_of
from results import Case, table, unmet

BENCH = Path(startup.__file__).parent

#: A parent that keeps 50 MB, and a child of it that works, reports and keeps 20 MB.
FAMILY = """
import subprocess, sys
kept = b"x" * 50_000_000
work = 'kept = b"y" * 20_000_000; sum(range(9_000_000)); print("there", flush=True); input()'
subprocess.run([sys.executable, "-c", work])
"""


def test_a_tree_counts_children_with_their_memory_and_time() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "there\n"
        family = tree(parent.pid)
        sizes = [pss_bytes(pid) for pid in family]
        seconds = cpu_seconds(parent.pid)
        parent.communicate("\n")
    assert family[0] == parent.pid
    assert len(family) == 2
    assert sizes[0]["anon"] > 50e6
    assert 20e6 < sizes[1]["anon"] < 50e6
    assert all(size["total"] >= size["anon"] + size["file"] for size in sizes)
    assert 0.05 < seconds < 30


def test_phases_of_one_process_follow_each_other() -> None:
    stages = {"7": ["ears", "eyes"], "8": ["voice"]}
    lines = [
        (1.0, "ears: importing"),
        (1.5, "voice: importing"),
        (2.0, "ears: loading weights 25%"),
        (2.5, "ears: loading weights 75%"),
        (4.0, "eyes: importing"),
        (4.002, "eyes: loading"),
        (5.0, "ears: ready"),
        (5.5, "pipeline: warm-up request"),
        (6.5, "Omni is ready on http://127.0.0.1:1"),
    ]
    found = startup.phases(lines, stages)
    assert [(p["stage"], p["phase"], p["start_s"], p["seconds"]) for p in found["ears + eyes"]] == [
        ("", "start process", 0.0, 1.0),
        ("ears", "importing", 1.0, 1.0),
        ("ears", "loading weights", 2.0, 2.0),
        ("eyes", "loading", 4.002, 5.0 - 4.002),
    ]
    assert [p["phase"] for p in found["voice"]] == ["start process"]
    assert [(p["phase"], p["seconds"]) for p in found[startup.SERVER]] == [
        ("start process", 5.5),
        ("warm-up request", 1.0),
    ]


def test_the_last_start_is_judged() -> None:
    def start(ready_s: float, *bytes_: float) -> dict[str, Any]:
        memory = [{"pss": {"total": size}} for size in bytes_]
        return {"ready_s": ready_s, "cpu_s": 2 * ready_s, "memory": memory}

    other = {"ready_s": 18.0, "cpu_s": 18.0, "pss": {"total": 0.35e9}}
    slow_first = startup.cases([start(40.0, 3e9), start(9.0, 0.5e9, 0.2e9)], other)
    assert unmet(slow_first) == []
    ratios = {case.case: case.ratio for case in slow_first if case.other is not None}
    assert ratios["ready, beside"] == 2.0
    over = startup.cases([start(15.1, 1.5e9, 0.6e9)], None)
    assert unmet(over) == [
        "ready, warm: 15.1, the goal is at most 15 s",
        "memory (PSS): 2,100, the goal is at most 2000 MB",
    ]


def compared(ours: float, other: float | None, **more: Any) -> Case:
    return Case(case="c", unit="s", ours=ours, other=other, other_name="them", **more)


def test_a_ratio_is_better_when_larger() -> None:
    assert compared(30.0, 10.0).ratio == 3.0
    assert compared(1.0, 8.0, better="less").ratio == 8.0


def test_a_case_holds_if_its_ratio_or_else_its_number_reaches_the_goal() -> None:
    assert compared(30.0, 10.0, goal=3.0).holds is True
    assert compared(29.0, 10.0, goal=3.0).holds is False
    assert compared(1.0, 8.0, goal=8.0, better="less").holds is True
    alone = functools.partial(Case, case="c", unit="ms", better="less")
    assert alone(ours=0.2, goal=0.25).holds is True
    assert alone(ours=0.3, goal=0.25).holds is False
    assert alone(ours=0.3).holds is None


def test_what_was_not_compared_never_holds() -> None:
    case = compared(1000.0, None, goal=3.0)
    assert case.skipped
    assert case.holds is False
    assert "skipped" in table([case])
    assert unmet([case]) == ["c: skipped, them was not there"]


def test_a_case_is_kept_in_the_form_of_all_benches() -> None:
    assert compared(30.0, 10.0, goal=2.0).kept() == {
        "case": "c",
        "ours": 30.0,
        "other": 10.0,
        "other_name": "them",
        "unit": "s",
        "ratio": 3.0,
        "goal": 2.0,
        "holds": True,
    }


def test_the_command_lists_its_benches() -> None:
    command = [sys.executable, str(BENCH / "run.py"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in run.BENCHES)


def test_the_bench_for_cards_runs_at_tiny_sizes_without_one(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    command = [sys.executable, str(BENCH / "run.py"), "gpu.talker", "--json", str(file)]
    options = ["--tiny", "--device", "cpu", "--frames", "2", "--compile", "off"]
    shown = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
    assert "on cpu, without a card" in shown
    result = json.loads(file.read_text())
    assert set(result) == {"bench", "machine", "commit", "cases"}
    assert result["bench"] == "gpu.talker"
    speeds = [case for case in result["cases"] if case["case"].startswith("audio made in a second")]
    assert len(speeds) == 3
    assert all(case["ours"] > 0 and case["holds"] is None for case in speeds)


def test_an_endless_checkpoint_has_no_end_to_choose(tmp_path: Path) -> None:
    directory = Path(build_endless(tmp_path / "endless"))
    heads: dict[str, Any] = {}
    for shard in directory.glob("*.safetensors"):
        tensors = load_file(shard)
        heads |= {name: tensors[name] for name in (TEXT_HEAD, SPEECH_HEAD) if name in tensors}
    config = json.loads((directory / "config.json").read_text())
    assert not heads[TEXT_HEAD][config["im_end_token_id"]].any()
    assert not heads[SPEECH_HEAD][config["talker_config"]["codec_eos_token_id"]].any()
    assert heads[TEXT_HEAD].any(axis=1).sum() > 1


@pytest.mark.parametrize("language", TEXTS)
def test_pieces_of_a_text_differ_and_make_it(language: str) -> None:
    text, least = TEXTS[language]
    pieces = pieces_of(text, least)
    assert len(pieces) == len(set(pieces)) >= 240
    assert text.startswith("".join(pieces))
    assert all(len(piece) >= least for piece in pieces)


async def test_a_reciting_checkpoint_says_its_text_and_ends(tmp_path: Path) -> None:
    pieces = pieces_of("河边没有雾。狐狸来到河边，没有说话。 the fox spoke", 2)
    checkpoint = build_reciting(tmp_path / "reciting", pieces)
    params = RequestParams(sampling=SamplingParams(max_tokens=100))
    asked = Message(role="user", content=(TextPart(text="what did the fox say?"),))
    async with Pipeline.load(checkpoint, variant="text", device="cpu", compile="off") as pipeline:
        request = Request(messages=(asked,), params=params)
        said: list[Event] = [event async for event in pipeline.generate(request)]
    assert "".join(event.text for event in said if isinstance(event, TextDelta)) == "".join(pieces)
    assert isinstance(said[-1], Finished)
    assert said[-1].finish_reason == "stop"


def test_the_bench_of_ming_hears_all_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    options = ["--languages", "Chinese", "--tokens", "30", "--patches", "3", "--rounds", "1"]
    command = [sys.executable, str(BENCH / "run.py"), "ming", "--json", str(file), *options]
    subprocess.run(command, capture_output=True, check=True)
    ours = {case["case"]: case["ours"] for case in json.loads(file.read_text())["cases"]}
    batches = [ours[name] for name in ours if name.endswith("in a flow batch")]
    alone, crowd, *_ = batches
    assert len(batches) == 4
    assert 1 <= alone < crowd


SPOKEN = [
    {"choices": [{"delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"delta": {"audio": {"id": "a", "transcript": "Good"}}}]},
    {"choices": [{"delta": {"audio": {"data": base64.b64encode(bytes(2730)).decode()}}}]},
    {"choices": [{"delta": {"content": " day"}}]},
    {"choices": [{"delta": {"audio": {"data": base64.b64encode(b"RIFF" + bytes(440)).decode()}}}]},
    {"choices": [], "usage": {"completion_tokens": 9}},
]


async def test_a_client_hears_text_and_audio_however_they_are_spelt() -> None:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in SPOKEN)
    heard = await hear(in_chunks(body + b"data: [DONE]\n\n"))
    assert heard.text_tokens == 9
    assert heard.samples == 2730 // 2 + (444 - 44) // 2
    assert heard.first_samples == 2730 // 2
    assert heard.pieces == 2
    assert heard.first_text_s is not None
    assert heard.first_audio_s is not None
    assert heard.first_text_s <= heard.first_audio_s <= heard.end_s


async def test_a_client_raises_what_a_server_refuses() -> None:
    with pytest.raises(RuntimeError, match="400 Bad Request: no such voice"):
        await hear(b"HTTP/1.1 400 Bad Request\r\n\r\nno such voice")
    cut = in_chunks(b'data: {"error": {"message": "lost"}}\n\n')
    with pytest.raises(RuntimeError, match="lost"):
        await hear(cut)


def in_chunks(body: bytes) -> bytes:
    """A response in transfer chunks that keep to no border of its events."""
    pieces = [body[start : start + 70] for start in range(0, len(body), 70)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def hear(response: bytes) -> Heard:
    """What the client makes of a server that answers so."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await ask(f"http://127.0.0.1:{port}", {"model": "any"})


def test_a_chat_of_the_crowd_is_whole_or_not() -> None:
    said = [
        {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"completion_tokens": 48}},
    ]
    events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in said]
    done = b"data: [DONE]\n\n"
    assert chat_end(b"".join([*events, done])) == ("length", 48, True)
    assert chat_end(b"".join(events)) == ("length", 48, False)
    assert chat_end(b"".join([*events, done[:-2]])) == ("length", 48, False)
    assert chat_end(events[0] + done) == (None, 0, True)
