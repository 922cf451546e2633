"""Pictures of a graph: what they show, and that they are well-formed and legible."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from omni_core.errors import ConfigError
from omni_core.plugins import Plugins
from omni_core.specs import Ref, StageConfig
from omni_core.testing import echo
from omni_server import cli
from omni_server.cli.drawing import mermaid, plain, svg
from omni_server.cli.drawing.layout import BOX_HEIGHT, lay_out
from omni_server.cli.drawing.scene import scene

BUILD = Ref("somewhere:build")
SVG = "{http://www.w3.org/2000/svg}"


def stage(name: str, *following: str, **fields: Any) -> StageConfig:
    env = {"OMNI_CARD_POOL_MIB": "64"}
    return StageConfig(name=name, factory=BUILD, next=following, env=env, **fields)


STAGES = (
    stage("voice", terminal="audio", gpu=(0, 1), process="out", replicas=2),
    stage("intake", "eye", "thinker", process="front"),
    stage("eye", "thinker", gpu=1, process="front"),
    stage("thinker", "voice", stream_to=("voice",), terminal="text", gpu=1),
)
SCENE = scene('parrot, "loud" & <big>', STAGES, "intake", remote=("front",))
DRAWN = """\
parrot, "loud" & <big>

request          api process
  -> intake      tcp

intake           front    cpu
  -> eye         local
  -> thinker     tcp

eye              front    cuda:1
  -> thinker     tcp

thinker          thinker  cuda:1
  => voice       shm, cuda-ipc
  => text reply  shm

voice            out x2   cuda:0,1
  => audio reply shm
"""


def test_text_shows_process_device_and_transport() -> None:
    lines = [re.sub(" +", " ", line) for line in plain.draw(SCENE).splitlines()]
    wanted = [re.sub(" +", " ", line) for line in DRAWN.splitlines()]
    assert lines[: len(wanted)] == wanted
    told = {line.split(": ")[0]: line for line in lines[len(wanted) :] if ": " in line}
    assert set(told) == {"local", "shm", "cuda-ipc", "tcp"}
    assert "up to 16 KiB a tensor" in told["shm"]


def test_mermaid_declares_what_it_connects() -> None:
    text = mermaid.draw(SCENE)
    assert text.startswith('---\ntitle: "parrot, #quot;loud#quot; #amp; #lt;big>"\n---\nflowchart')
    declared = set(re.findall(r"^\s+(s\d+)[\[(]", text, re.MULTILINE))
    edges = re.findall(r'(s\d+) (-->|==>)\|"([a-z, -]+)"\| (s\d+)', text)
    assert len(edges) == len(SCENE.edges)
    assert {end for source, _, _, target in edges for end in (source, target)} == declared
    assert sum(arrow == "==>" for _, arrow, _, _ in edges) == 3
    assert text.count("subgraph ") == text.count("\n  end") == 3


def test_svg_is_well_formed_and_nothing_overlaps() -> None:
    root = ElementTree.fromstring(svg.draw(SCENE))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    boxes = [r for r in root.iter(f"{SVG}rect") if r.get("height") == f"{BOX_HEIGHT:.0f}"]
    assert len(boxes) == len(SCENE.boxes) == 7
    sides = [[float(box.get(key, 0)) for key in ("x", "y", "width", "height")] for box in boxes]
    for x, y, w, h in sides:
        assert 0 <= x <= width - w
        assert 0 <= y <= height - h
    for (x, y, w, h), (x2, y2, _, _) in combinations(sides, 2):
        assert abs(x - x2) >= w or abs(y - y2) >= h
    paths = [p.get("class", "") for p in root.iter(f"{SVG}path") if p.get("class")]
    assert len(paths) == len(SCENE.edges)
    assert sum("stream" in kinds for kinds in paths) == 3
    assert sum("local" in kinds for kinds in paths) == 1
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert (texts.count("tcp"), texts.count("shm"), texts.count("shm, cuda-ipc")) == (3, 2, 1)
    assert {'parrot, "loud" & <big>', "intake", "front · cuda:1", "process out x2"} <= set(texts)


def test_a_long_edge_goes_around_the_boxes_it_passes() -> None:
    depths = {"a": 0, "b": 1, "c": 1, "d": 2}
    edges = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")]
    layout = lay_out(depths, edges)
    [passing] = layout.waypoints["a", "d"]
    for name in ("b", "c"):
        assert abs(layout.rows[name] - passing) > BOX_HEIGHT / 2
    assert layout.waypoints["a", "b"] == ()


def test_columns_are_ordered_to_avoid_crossings() -> None:
    depths = {"a": 0, "b": 0, "x": 1, "y": 1}
    rows = lay_out(depths, [("a", "y"), ("b", "x")]).rows
    assert (rows["a"] < rows["b"]) == (rows["y"] < rows["x"])


def test_the_command_draws_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plugins, "discover", lambda self: echo.plugins())
    run = CliRunner().invoke
    words = ["graph", "--device", "cpu", "--intake.process", "alone"]
    assert re.search(r"^intake +alone +cpu$", run(cli.app, words).output, re.MULTILINE)
    assert "flowchart LR" in run(cli.app, [*words, "--format", "mermaid"]).output
    assert run(cli.app, [*words, "--format", "svg"]).output.startswith("<svg ")
    assert "tcp" not in re.findall(r"\S+$", run(cli.app, words).output, re.MULTILINE)
    far = run(cli.app, [*words, "--remote", "alone"]).output
    assert "tcp" in re.findall(r"\S+$", far, re.MULTILINE)
    for wrong in (["--format", "png"], ["--remote", "alonee"]):
        assert isinstance(run(cli.app, [*words, *wrong]).exception, ConfigError)


def test_two_terminals_of_one_modality_share_their_reply() -> None:
    twice = (*STAGES[:3], replace(STAGES[3], terminal="audio"))
    names = [box.name for box in scene("t", twice, "intake").boxes]
    assert names.count("audio reply") == 1
