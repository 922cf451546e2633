"""The pure parts of the `omni` command, and the demo's client against a live server."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from omni_core.errors import ConfigError, OmniError
from omni_core.hookspecs import hookimpl
from omni_core.plugins import Plugins
from omni_core.specs import ModelInfo, PipelineConfig, StageConfig
from omni_core.types import TextDelta
from omni_server import cli
from omni_server.cli import demo, demo_media, tiny
from omni_server.cli.demo_client import Heard, ask, get_json


def factory(context):
    raise AssertionError("never built here")


STAGES = (
    StageConfig(name="voice", factory=factory, terminal="audio", gpu=(0, 1), process="out"),
    StageConfig(name="intake", factory=factory, next=("eye", "thinker")),
    StageConfig(name="eye", factory=factory, next=("thinker",), gpu=1),
    StageConfig(
        name="thinker", factory=factory, next=("voice",), stream_to=("voice",), terminal="text"
    ),
)


def write_tiny(directory, seed):
    (Path(directory) / "config.json").write_text(json.dumps({"seed": seed}))


def parrot(name="parrot-2", build_tiny=write_tiny):
    return PipelineConfig(
        name=name,
        architectures=("Parrot",),
        variants={"speech": STAGES},
        default_variant="speech",
        entry="intake",
        describe=lambda path: ModelInfo(context_length=1),
        build_tiny=build_tiny,
    )


def registry(**plugins):
    """A registry with plugins that register the given pipelines."""
    found = Plugins()
    for name, pipelines in plugins.items():
        module = ModuleType(name)
        module.register_pipelines = hookimpl(lambda pipelines=pipelines: pipelines)
        found.register(module, name)
    return found


def test_tiny_is_found_by_pipeline_or_plugin(tmp_path):
    one, bare = parrot(), parrot("bare", build_tiny=None)
    plugins = registry(birds=[one, bare])
    assert tiny.find("parrot-2", plugins) is one
    assert tiny.find("birds", plugins) is one
    assert tiny.any_buildable(plugins) is one
    with pytest.raises(ConfigError, match="there are: parrot-2"):
        tiny.find("bare", plugins)
    with pytest.raises(ConfigError, match="owl, parrot-2; name one"):
        tiny.find("birds", registry(birds=[one, parrot("owl")]))
    with pytest.raises(ConfigError, match="install a model package"):
        tiny.any_buildable(registry())
    tiny.build(one, tmp_path / "new" / "dir", seed=5)
    assert json.loads((tmp_path / "new" / "dir" / "config.json").read_text()) == {"seed": 5}


def test_tiny_for_one_variant_is_built_by_its_own_builder(tmp_path):
    def write_mute(directory, seed):
        (Path(directory) / "mute").write_text(str(seed))

    one = replace(parrot(), build_tiny_for={"mute": write_mute})
    tiny.build(one, tmp_path, seed=5, variant="mute")
    assert (tmp_path / "mute").read_text() == "5"
    with pytest.raises(ConfigError, match="'loud' alone; there are: mute"):
        tiny.build(one, tmp_path, seed=5, variant="loud")


def test_commands_without_plugins(monkeypatch):
    monkeypatch.setenv("OMNI_PLUGINS", "")
    run = CliRunner().invoke
    assert "no plugins" in run(cli.app, ["plugins"]).output
    assert "omni-core " in run(cli.app, ["version"]).output
    result = run(cli.app, ["graph", "--pipeline", "owl"])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize("command", ["serve", "tiny", "graph", "demo", "plugins", "version"])
def test_every_command_has_help(command):
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert (result.exit_code, result.exception) == (0, None)
    assert "Usage: " in result.output


def test_errors_end_as_one_line_and_status_1(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["omni", "serve", "--model-path", "/nowhere/at/all"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: '/nowhere/at/all' is neither a directory")
    assert error.count("\n") == 1


def test_demo_media_are_real_files():
    with wave.open(io.BytesIO(demo_media.spoken_question())) as file:
        assert file.getframerate() == demo_media.SAMPLE_RATE
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert 1.5 < samples.size / demo_media.SAMPLE_RATE < 2.5
    assert 10_000 < np.abs(samples).max() < 32_767
    image = Image.open(io.BytesIO(demo_media.picture()))
    assert (image.format, image.size) == ("PNG", (64, 64))
    assert image.getpixel((32, 32)) == (220, 40, 40)


async def test_demo_client_hears_a_streamed_reply(live, kit):
    spoken: list[str] = []
    body = demo.request_body(b"RIFF", b"PNG", ("voice",))
    heard = await asyncio.to_thread(ask, live.url, body, spoken.append)
    assert spoken == ["Hé", "llo", " there"]
    assert heard.transcript == "Héllo there"
    assert len(heard.pcm) == 2 * 1471
    assert heard.sample_rate == kit.RATE
    assert heard.usage["total_tokens"] == 23
    assert 0 < heard.first_text_s <= heard.first_audio_s <= heard.total_s
    assert [span["stage"] for span in heard.timeline] == ["thinker", "voice"]
    [request] = live.pipeline.requests
    assert [part.kind for part in request.messages[0].content] == ["image", "audio"]
    assert request.params.sampling_for("voice").max_tokens == demo.MAX_AUDIO_FRAMES
    health = await asyncio.to_thread(get_json, live.url, "/health")
    assert health["status"] == "ready"


def test_demo_asks_what_the_model_can_hear_and_see():
    seen = demo.request_body(b"RIFF", b"PNG", ("voice",))
    assert [part["type"] for part in seen["messages"][0]["content"]] == ["image_url", "input_audio"]
    assert seen["max_tokens"] == demo.MAX_TEXT_TOKENS
    heard = demo.request_body(b"RIFF", None, (), "low")
    assert [part["type"] for part in heard["messages"][0]["content"]] == ["input_audio"]
    assert heard["audio"]["voice"] == "low"
    assert "max_tokens" not in heard  # a model that is not random ends by itself


async def test_demo_client_says_what_went_wrong(live):
    body = demo.request_body(b"RIFF", b"PNG", ())
    with pytest.raises(OmniError, match="temperature"):
        await asyncio.to_thread(ask, live.url, {**body, "temperature": 9}, print)
    live.pipeline.script = lambda request: [TextDelta(text="a"), OmniError("gone")]
    with pytest.raises(OmniError, match="broke off: gone"):
        await asyncio.to_thread(ask, live.url, body, lambda text: None)


def test_demo_tables():
    spans = [
        {"stage": "voice", "start_s": 0.2, "first_output_s": None, "end_s": 0.5},
        {"stage": "thinker", "start_s": 0.0, "first_output_s": 0.1234, "end_s": 0.4},
    ]
    assert demo.timeline_table(spans).splitlines() == [
        "stage        start  first out        end   (ms)",
        "thinker        0.0      123.4      400.0",
        "voice        200.0          -      500.0",
    ]
    heard = Heard(pcm=b"\0" * 48_000, sample_rate=24_000, first_text_s=0.1, total_s=2.0)
    assert demo.summary(heard) == (
        "first text 0.10 s (TTFT), first audio never (TTFA), all 2.00 s, 1.00 s of audio"
    )
