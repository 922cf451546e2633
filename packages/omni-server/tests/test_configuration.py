"""`--config`, the options of a command line and `omni config`, over the echo pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omni_core.config.refused import REFUSED
from omni_core.errors import ConfigError
from omni_core.media.limits import MediaLimits
from omni_core.plugins import Plugins
from omni_core.specs import Ref, StageConfig
from omni_core.testing import echo
from omni_server import cli
from omni_server.cli import configuration
from omni_server.cli.configuration import CommandLine, choose, read, resolve_pipeline
from omni_server.cli.overrides import parse_overrides
from omni_server.settings import media_limits

FILE = """\
layout: per-stage
server:
  port: 9000
  served_model_name: parrot
stages:
  intake:
    max_concurrency: 8
    env: {OMP_NUM_THREADS: 2}
  voice:
    options:
      frames: 9
"""


@pytest.fixture
def omni(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command with the echo plugin alone; `{file}` is the path of FILE."""
    monkeypatch.setattr(Plugins, "discover", lambda self: echo.plugins())
    file, model = tmp_path / "omni.yaml", echo.write_checkpoint(tmp_path / "model")
    file.write_text(FILE)

    def run(*words: str) -> Result:
        paths = {"file": str(file), "model": model, "directory": str(tmp_path)}
        return CliRunner().invoke(cli.app, [word.format(**paths) for word in words])

    return run


def lines_of(result: Result) -> dict[str, list[str]]:
    """{"stage name": [value, source]} of what `explain` has printed."""
    assert result.exit_code == 0, result.exception
    found, heading = {}, ""
    for line in result.output.splitlines()[2:]:
        if line and not line.startswith(" "):
            heading = line.removeprefix("stage ")
        elif line:
            name, *rest = line.split(maxsplit=2)
            found[f"{heading} {name}"] = rest
    return found


def problems_of(result: Result) -> tuple[str, ...]:
    assert isinstance(result.exception, ConfigError), result.output
    return result.exception.problems


def test_overrides_both_spellings() -> None:
    words = ["--thinker.max_batch", "8", "--voice.gpu=1", "--a.b=x=y", "--voice.gpu=2"]
    wanted = {"thinker.max_batch": "8", "voice.gpu": "2", "a.b": "x=y", "t.n": "-1"}
    assert parse_overrides([*words, "--t.n", "-1"]) == (wanted, [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--speed", "3"], "--speed: no such option; see --help"),
        (["--varient=text"], "--varient: no such option; did you mean --variant?"),
        (["stray"], "unknown argument 'stray'"),
        (["--a.b"], "--a.b needs a value"),
        (["--a.b", "--c.d", "1"], "--a.b needs a value"),
        (["--.b", "1"], "--.b: no such option"),
        (["--enable-lora"], "--enable-lora: LoRA is not supported: "),
        (["--speculative-algorithm", "EAGLE"], "--speculative-algorithm: speculative decoding is"),
    ],
)
def test_overrides_refused(words: list[str], problem: str) -> None:
    _, [found] = parse_overrides(words, ["--variant", "--device"])
    assert found.startswith(problem)


@pytest.mark.parametrize("name", [name for item in REFUSED for name in item.names])
def test_what_is_not_supported_is_refused_by_flag_and_by_key(omni: Any, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    [by_flag] = problems_of(omni("config", "explain", flag, "1"))
    assert by_flag.startswith(f"{flag}: ")
    assert "is not supported: " in by_flag


@pytest.mark.parametrize("device", [name for item in REFUSED for name in item.devices])
def test_other_accelerators_are_refused_with_the_reason(omni: Any, device: str) -> None:
    [problem] = problems_of(omni("serve", "--model-path", "{model}", "--device", device))
    assert problem.startswith("--device: an" if "TPU" not in problem else "--device: a TPU")
    assert problem.endswith("; use --device cpu")


@pytest.mark.parametrize("command", [("graph",), ("config", "explain"), ("config", "export")])
def test_text_only_is_the_variant_without_speech(
    omni: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    mute = StageConfig(name="writer", factory=Ref("somewhere:build"), terminal="text")
    both = {**echo.PIPELINE.variants, "text": (mute,)}
    pipeline = replace(echo.PIPELINE, variants=both, entry="writer")
    monkeypatch.setattr(Plugins, "pipelines", lambda self: {"echo": pipeline})
    short, long = omni(*command, "--text-only"), omni(*command, "--variant", "text")
    assert short.exit_code == 0, short.exception
    assert short.output == long.output
    [problem] = problems_of(omni(*command, "--text-only", "--variant", "speech"))
    assert problem.endswith("leave one of them out")


def test_serve_takes_text_only(omni: Any) -> None:
    [problem] = problems_of(omni("serve", "--model-path", "{model}", "--text-only"))
    assert problem.startswith("--variant: pipeline 'echo' has no variant 'text'")


def test_every_value_knows_its_source(omni: Any) -> None:
    words = ("--model-path", "{model}", "--config", "{file}", "--device", "cpu", "--port", "7")
    found = lines_of(omni("config", "explain", *words, "--intake.max_batch", "3"))
    assert found["pipeline layout"] == ["per-stage", "omni.yaml:1"]
    assert found["pipeline device"] == ["cpu", "--device"]
    assert found["pipeline variant"] == ["speech", "plugin"]
    assert found["pipeline dtype"] == ["float32", "default: auto"]
    assert found["server port"] == ["7", "--port"]
    assert found["server host"] == ["127.0.0.1", "default"]
    assert found["server served_model_name"] == ["parrot", "omni.yaml:4"]
    assert found["intake max_batch"] == ["3", "--intake.max_batch"]
    assert found["intake max_concurrency"] == ["8", "omni.yaml:7"]
    assert found["intake env.OMP_NUM_THREADS"] == ["2", "omni.yaml:8"]
    assert found["voice options.frames"] == ["9", "omni.yaml:11"]
    assert found["writer next"] == ["voice", "plugin"]


def test_an_exported_file_resolves_to_the_same(omni: Any, tmp_path: Path) -> None:
    words = ("--model-path", "{model}", "--config", "{file}", "--intake.max_batch", "3")
    exported = omni("config", "export", *words, "--device", "cpu", "--host", "::1")
    (tmp_path / "again.yaml").write_text(exported.output)
    again = omni("config", "export", "--config", "{directory}/again.yaml")
    assert again.output == exported.output

    def resolved(file: Path | None, **flags: str) -> Any:
        typed = CommandLine(config=file, flags=flags)
        return resolve_pipeline(read(typed), "echo", echo.plugins())

    first = resolved(tmp_path / "omni.yaml", device="cpu")
    (tmp_path / "more.yaml").write_text(configuration_text(first))
    second = resolved(tmp_path / "more.yaml")
    assert second.stages == first.stages
    values = [{n: s.value for n, s in r.settings.items()} for r in (first, second)]
    assert values[0] == values[1]


def configuration_text(resolved: Any) -> str:
    from omni_core.config.explain import document, to_yaml

    return to_yaml(document(resolved))


def test_problems_of_server_pipeline_and_stages_come_at_once(omni: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "server: {prot: 1, port: high, max_body_mib: 0}\n"
        "layuot: auto\n"
        "lora_paths: [a]\n"
        "stages: {voice: {options: {frame: 1}}, writer: {next: [x]}, wrter: {gpu: 0}}\n"
    )
    words = ("--model-path", "{model}", "--config", "{directory}/bad.yaml", "--dtype", "int8")
    found = problems_of(omni("serve", *words, "--drain-timeout-s", "-1", "--hots", "x"))
    starts = [
        "--hots: no such option; did you mean --host?",
        "bad.yaml:1: server.prot: no such setting; did you mean 'port'?",
        "bad.yaml:1: server.port: got 'high'; expected a whole number from 0 to 65535",
        "bad.yaml:1: server.max_body_mib: got 0; expected a whole number of at least 1",
        "--drain-timeout-s: got -1.0; expected a number of at least 0",
        "bad.yaml:2: layuot: no such setting; did you mean 'layout'?",
        "bad.yaml:3: lora_paths: LoRA is not supported: ",
        "--dtype: got 'int8'; expected auto, float32, bfloat16 or float16",
        "bad.yaml:4: stages.voice.options.frame: stage 'voice' has no option 'frame'; did you",
        "bad.yaml:4: stages.writer.next: next belongs to the pipeline's graph",
        "bad.yaml:4: stages.wrter: no stage 'wrter'; did you mean 'writer'?",
    ]
    assert len(found) == len(starts), found
    for problem, start in zip(found, starts, strict=True):
        assert problem.startswith(start)


def test_a_missing_file_or_checkpoint_is_told(omni: Any) -> None:
    [problem] = problems_of(omni("serve", "--config", "{directory}/none.yaml"))
    assert problem.startswith("--config ")
    [problem] = problems_of(omni("serve", "--config", "{file}"))
    assert problem == "no checkpoint; give --model-path DIR, or model_path in the file"


def test_the_file_may_name_the_checkpoint(tmp_path: Path) -> None:
    model = echo.write_checkpoint(tmp_path / "model")
    (tmp_path / "omni.yaml").write_text(f"model_path: {model}\n")
    typed = CommandLine(config=tmp_path / "omni.yaml", flags={"device": "cpu"})
    asked = read(typed)
    assert resolve_pipeline(asked, plugins=echo.plugins()).pipeline.name == "echo"
    assert asked.served_model_name == "model"


def test_a_pipeline_is_chosen_by_name_or_by_being_the_only_one() -> None:
    assert choose(echo.plugins(), None) is choose(echo.plugins(), "echo")
    with pytest.raises(ConfigError, match="installed: echo"):
        choose(echo.plugins(), "owl")
    with pytest.raises(ConfigError, match="installed: none"):
        choose(Plugins(), None)


def test_every_setting_of_the_server_has_a_default() -> None:
    assert configuration.SERVER_DEFAULTS.keys() == configuration.SERVER_FIELDS.keys()


def test_uploads_have_the_limits_of_the_stage_that_reads_media() -> None:
    options = {"max_bytes": 5, "max_pixels": None, "cache_entries": 3, "allowed_hosts": ["a.b"]}
    assert media_limits(options) == MediaLimits(max_bytes=5, allowed_hosts=("a.b",))
    assert media_limits({}) == MediaLimits()
    with pytest.raises(ConfigError, match="max_bytes"):
        media_limits({"max_bytes": "many"})
