"""The options that several commands share, as typer wants them declared.

None of them has a default here: defaults are the lowest layer of configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

EXTRA_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of commands that take --STAGE.FIELD VALUE."""

ModelPath: TypeAlias = Annotated[
    str | None, typer.Option(help="Directory, or hub id organisation/name[@revision].")
]
PipelineName: TypeAlias = Annotated[
    str | None, typer.Option(help="A pipeline by name, instead of a checkpoint.")
]
ConfigPath: TypeAlias = Annotated[
    Path | None, typer.Option("--config", help="YAML file of settings.")
]
Variant: TypeAlias = Annotated[str | None, typer.Option(help="Variant of the pipeline.")]
TextOnly: TypeAlias = Annotated[
    bool, typer.Option("--text-only", help="Short for --variant text: no speech stages.")
]
Device: TypeAlias = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Dtype: TypeAlias = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
ArEngine: TypeAlias = Annotated[str | None, typer.Option(help="auto, torch or sglang.")]
Compile: TypeAlias = Annotated[
    str | None, typer.Option(help="Faster hot steps: off, background or wait.")
]
Layout: TypeAlias = Annotated[str | None, typer.Option(help="auto or per-stage.")]
Host: TypeAlias = Annotated[
    str | None, typer.Option(help="Address to listen on; 127.0.0.1 if not set.")
]
Port: TypeAlias = Annotated[
    int | None, typer.Option(help="Port to listen on, 8000 if not set; 0 picks a free one.")
]
ServedModelName: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Model id clients ask for; by default the directory's name, or the hub id."),
]
MaxBodyMib: TypeAlias = Annotated[
    int | None, typer.Option(help="Largest request body, 256 if not set.")
]
MaxInFlight: TypeAlias = Annotated[
    int | None, typer.Option(help="Requests in the stages at once, 128 if not set.")
]
MaxQueue: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Requests that wait for a place there, 1024 if not set; 0 is no queue."),
]
Listen: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Where processes of other hosts dial in, tcp://HOST:PORT; nowhere if not set."
    ),
]
SecretFile: TypeAlias = Annotated[
    str | None, typer.Option(help="The secret that other hosts must have as well.")
]
Remote: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Processes that run on other hosts, with commas; see `omni stage`."),
]
RequestTimeoutS: TypeAlias = Annotated[
    float | None, typer.Option(help="Longest a request may take; no limit if not set.")
]
WatchdogTimeoutS: TypeAlias = Annotated[
    float | None,
    typer.Option(help="How long a stage process with requests may not answer, 30 if not set."),
]
ApiKey: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A key that clients need; may be given again. Shows in `ps`: better use "
        "--api-key-file or the environment variable OMNI_API_KEYS."
    ),
]
ApiKeyFile: TypeAlias = Annotated[
    str | None, typer.Option(help="Keys that clients need, one a line; none if not set.")
]
AdminKeyFile: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Keys of operators, who get the routes under /admin/; or OMNI_ADMIN_KEY."),
]
WeightsDir: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="Directory under which operators may load new weights from, besides the model's; may "
        "be given again."
    ),
]
ProfileDir: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Directory that an operator's recordings of torch's profiler are put into."),
]
VoicesDir: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Directory that keeps uploaded voices; memory, until the end, if not set."),
]
MaxVoices: TypeAlias = Annotated[
    int | None, typer.Option(help="Uploaded voices to keep at most, 100 if not set; 0 for none.")
]
MetricsAccess: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Who may read /metrics: open, key, or auto: open on loopback."),
]
CorsOrigin: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Origin of web pages that may call the API, or *; may be given again."),
]
RateLimit: TypeAlias = Annotated[
    int | None, typer.Option(help="Requests a minute for each client; no limit if not set.")
]
MaxRealtimeSessions: TypeAlias = Annotated[
    int | None, typer.Option(help="Realtime sessions at once, 128 if not set.")
]
Playground: TypeAlias = Annotated[
    str | None, typer.Option(help="The page to talk with the model, at /: on (if not set) or off.")
]
AccessLog: TypeAlias = Annotated[
    str | None,
    typer.Option(help="File for one line of JSON a request, - for standard output."),
]
DrainTimeoutS: TypeAlias = Annotated[
    float | None, typer.Option(help="How long Ctrl-C waits for open requests, 30 if not set.")
]
