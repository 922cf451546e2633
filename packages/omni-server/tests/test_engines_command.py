"""`omni engines` on machines of several kinds, and on this one."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from omni_core.engine.availability import SGLANG_RELEASE, Machine, TorchBuild
from omni_server import cli
from omni_server.cli.engines import document, lines

LAPTOP = Machine(torch=TorchBuild(version="2.13.0+cpu", cuda=None), sglang=None, cards=0)
SERVER = Machine(torch=TorchBuild(version="2.14.1", cuda="13.0"), sglang=SGLANG_RELEASE, cards=2)


def test_people_read_where_each_engine_runs_and_why_not() -> None:
    assert [*lines(LAPTOP)] == [
        "torch    2.13.0+cpu",
        "  cuda   no: torch 2.13.0+cpu is built without CUDA; install a build with it",
        "  cpu    runs",
        "sglang   not installed",
        f"  cuda   no: sglang {SGLANG_RELEASE} is not installed; docs/engines.md says how to "
        "install it",
        f"  cpu    no: sglang {SGLANG_RELEASE} is not installed; docs/engines.md says how to "
        "install it",
        "auto     torch",
    ]


def test_programs_read_the_same() -> None:
    found = document(SERVER)
    assert found["auto"] == "sglang"
    torch, sglang = found["engines"]
    assert (torch["name"], torch["version"], torch["runs_on"]) == (
        "torch",
        "2.14.1",
        ["cuda", "cpu"],
    )
    assert torch["obstacles"] == {}
    assert (sglang["name"], sglang["runs_on"]) == ("sglang", ["cuda"])
    assert sglang["obstacles"]["cpu"].startswith("beside a torch built for CUDA")
    assert sglang["capabilities"]["one_per_process"] is True


@pytest.mark.parametrize("arguments", [["engines"], ["engines", "--json"]])
def test_the_command_answers_for_this_machine(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.exception
    here = Machine.here()
    if "--json" in arguments:
        assert json.loads(result.output) == document(here)
    else:
        assert result.output.splitlines() == [*lines(here)]
