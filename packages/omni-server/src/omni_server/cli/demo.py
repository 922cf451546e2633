"""`omni demo`: the whole road in one command, over the same HTTP any client would use.

Builds a tiny checkpoint when given none, serves it in a process of its own, asks a spoken question
(about a picture, if the model sees), prints the reply as it streams and writes what was said.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from omni_core.errors import OmniError
from omni_core.media.encode import wav_bytes
from omni_core.plugins import Plugins
from omni_server.cli import tiny
from omni_server.cli.demo_client import Heard, ask, get_json
from omni_server.cli.demo_media import picture, spoken_question
from omni_server.cli.serve import READY

WORKSHOP = Path(".omni")
MAX_TEXT_TOKENS = 64
MAX_AUDIO_FRAMES = 120
STOP_TIMEOUT_S = 30.0
RANDOM = "\nThe weights of this checkpoint are random: the road is real, what it says is noise."


def demo(
    model_path: Annotated[
        Path | None, typer.Option(help="A checkpoint; a tiny one is built when left out.")
    ] = None,
    audio: Annotated[
        Path | None, typer.Option(help="The question, as an audio file; a short one if left out.")
    ] = None,
    voice: Annotated[
        str | None, typer.Option(help="Who answers; the model's default voice if left out.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write the spoken reply.")] = Path(
        "reply.wav"
    ),
) -> None:
    """Ask a model a spoken question, about a picture if it sees, and hear its answer."""
    checkpoint = model_path or tiny_checkpoint()
    question = audio.read_bytes() if audio else spoken_question()
    with server(checkpoint) as url:
        [model] = get_json(url, "/v1/models")["data"]
        image = picture() if "image" in model["input_modalities"] else None
        stages = tuple(get_json(url, "/health")["stages"]) if model_path is None else ()
        if model_path is None:
            typer.echo(RANDOM)
        typer.echo("\nreply: ", nl=False)
        body = request_body(question, image, stages, voice)
        heard = ask(url, body, lambda text: typer.echo(text, nl=False))
    typer.echo("\n")
    typer.echo(timeline_table(heard.timeline))
    typer.echo(f"\n{summary(heard)}")
    if not heard.pcm:
        raise OmniError("the model said nothing aloud; no audio was written")
    samples = np.frombuffer(heard.pcm, dtype="<i2").astype(np.int16)
    output.write_bytes(wav_bytes(samples, heard.sample_rate))
    typer.echo(f"wrote {output}")


def tiny_checkpoint() -> Path:
    """A tiny checkpoint of the first family that has one, built once and kept."""
    pipeline = tiny.any_buildable(Plugins().discover())
    directory = WORKSHOP / f"tiny-{pipeline.name}"
    finished = directory / "config.json"
    if not finished.exists():
        typer.echo(f"building a tiny {pipeline.name} in {directory}")
        tiny.build(pipeline, directory, seed=0)
    return directory


def request_body(
    question: bytes, image: bytes | None, capped_stages: tuple[str, ...], voice: str | None = None
) -> dict[str, Any]:
    """The chat request; random weights may never stop by themselves, so stages can be capped."""
    wav = base64.b64encode(question).decode()
    content: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
    ]
    if image is not None:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return {
        "messages": [{"role": "user", "content": content}],
        "modalities": ["text", "audio"],
        "audio": {"format": "pcm16", **({"voice": voice} if voice else {})},
        "stage_params": {name: {"max_tokens": MAX_AUDIO_FRAMES} for name in capped_stages},
        **({"max_tokens": MAX_TEXT_TOKENS} if capped_stages else {}),
        "seed": 0,
        "stream_options": {"include_usage": True},
        "include_timeline": True,
    }


@contextmanager
def server(checkpoint: Path) -> Iterator[str]:
    """A server in a process of its own; yields its URL once it is ready."""
    command = [sys.executable, "-m", "omni_server", "serve", "--port", "0"]
    command += ["--model-path", str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _url_when_ready(process)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _url_when_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        typer.echo(f"  {line.rstrip()}")
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise OmniError(f"the server ended with status {process.wait()} before it was ready")


def timeline_table(timeline: list[dict[str, Any]]) -> str:
    """What each stage did for the request, in milliseconds since it was submitted."""
    width = max([len("stage"), *(len(span["stage"]) for span in timeline)])
    lines = [f"{'stage':{width}}  {'start':>9}  {'first out':>9}  {'end':>9}   (ms)"]
    for span in sorted(timeline, key=lambda span: float(span["start_s"])):
        times = (span["start_s"], span["first_output_s"], span["end_s"])
        cells = "  ".join(f"{'-' if s is None else f'{s * 1000:.1f}':>9}" for s in times)
        lines.append(f"{span['stage']:{width}}  {cells}")
    return "\n".join(lines)


def summary(heard: Heard) -> str:
    """Latencies, and how fast the audio was made."""
    audio_s = len(heard.pcm) / 2 / heard.sample_rate if heard.sample_rate else 0.0
    parts = [
        f"first text {_seconds(heard.first_text_s)} (TTFT)",
        f"first audio {_seconds(heard.first_audio_s)} (TTFA)",
        f"all {_seconds(heard.total_s)}",
        f"{audio_s:.2f} s of audio",
    ]
    return ", ".join(parts)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"
