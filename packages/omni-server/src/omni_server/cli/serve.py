"""`omni serve`: a pipeline behind HTTP, from the command line to the last open request.

Knows start-up, signals and shutdown. The port answers from the first moment: /health says
"starting" until the pipeline is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import typer

from omni_core.config import Layout as PipelineLayout
from omni_core.errors import ConfigError
from omni_core.pipeline import AdmissionLimits, Pipeline
from omni_core.plugins import Plugins
from omni_server.access import OnAccess, look_away
from omni_server.access import access_log as open_access_log
from omni_server.app import guarded, server_context
from omni_server.cli import security
from omni_server.cli.configuration import Configuration, command_line, network_of, read
from omni_server.cli.options import (
    AccessLog,
    AdminKeyFile,
    ApiKey,
    ApiKeyFile,
    ArEngine,
    Compile,
    ConfigPath,
    CorsOrigin,
    Device,
    DrainTimeoutS,
    Dtype,
    Host,
    Layout,
    Listen,
    MaxBodyMib,
    MaxInFlight,
    MaxQueue,
    MaxRealtimeSessions,
    MaxVoices,
    MetricsAccess,
    ModelPath,
    Playground,
    Port,
    ProfileDir,
    RateLimit,
    Remote,
    RequestTimeoutS,
    SecretFile,
    ServedModelName,
    TextOnly,
    Variant,
    VoicesDir,
    WatchdogTimeoutS,
    WeightsDir,
)
from omni_server.cli.progress import Progress, progress_on
from omni_server.context import ServerContext
from omni_server.door import Door
from omni_server.http import HttpServer, bind, http_server
from omni_server.plugged import Plugged
from omni_server.settings import MIB, Settings, media_limits

READY = "Omni is ready on "
"""What precedes the URL on the line that says so; `omni demo` waits for it."""
KILLED_BY_SIGINT = 130
LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
LAST_WORDS_S = 5.0
"""For a client to read that its request has failed, once the drain is over."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    context: typer.Context,
    model_path: ModelPath = None,
    config: ConfigPath = None,
    variant: Variant = None,
    text_only: TextOnly = False,
    host: Host = None,
    port: Port = None,
    device: Device = None,
    dtype: Dtype = None,
    ar_engine: ArEngine = None,
    compile: Compile = None,
    layout: Layout = None,
    served_model_name: ServedModelName = None,
    max_body_mib: MaxBodyMib = None,
    max_in_flight: MaxInFlight = None,
    max_queue: MaxQueue = None,
    listen: Listen = None,
    secret_file: SecretFile = None,
    remote: Remote = None,
    request_timeout_s: RequestTimeoutS = None,
    watchdog_timeout_s: WatchdogTimeoutS = None,
    drain_timeout_s: DrainTimeoutS = None,
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    admin_key_file: AdminKeyFile = None,
    weights_dir: WeightsDir = None,
    profile_dir: ProfileDir = None,
    voices_dir: VoicesDir = None,
    max_voices: MaxVoices = None,
    metrics_access: MetricsAccess = None,
    cors_origin: CorsOrigin = None,
    rate_limit: RateLimit = None,
    max_realtime_sessions: MaxRealtimeSessions = None,
    playground: Playground = None,
    access_log: AccessLog = None,
) -> None:
    """Serve a checkpoint over OpenAI's HTTP API.

    Settings of one stage are written --STAGE.FIELD VALUE, for instance --thinker.max_running 8.
    """
    start(read(command_line(context)), api_key or [])


def start(configuration: Configuration, api_keys: Sequence[str] = ()) -> None:
    """Serve what is configured until a signal comes. `api_keys` are those of the command line."""
    logging.basicConfig(format=LOG_FORMAT)
    progress = progress_on(sys.stdout, typer.echo)
    settings = settings_of(configuration, api_keys)
    plugins = Plugins().discover()
    plugged = Plugged.of(plugins)
    pipeline = load(configuration, progress, plugins)
    settings = replace(settings, media=media_limits(pipeline.entry_options))
    server = {name: setting.value for name, setting in configuration.server.items()}
    security.warn_if_open(configuration.server, settings.api_keys)

    def announce(line: str) -> None:
        progress.close()
        typer.echo(line)

    with (
        closing(progress),
        bind(server["host"], server["port"]) as listener,
        open_access_log(server["access_log"]) as on_access,
    ):
        drain_timeout_s = server["drain_timeout_s"]
        context = server_context(pipeline, settings, plugged)
        asyncio.run(run(context, listener, drain_timeout_s, announce, on_access))


def settings_of(configuration: Configuration, api_keys: Sequence[str] = ()) -> Settings:
    """What the HTTP server must know; ConfigError for keys that are none."""
    server = configuration.server
    return Settings(
        served_model_name=configuration.served_model_name,
        max_body_bytes=server["max_body_mib"].value * MIB,
        request_timeout_s=server["request_timeout_s"].value,
        api_keys=security.api_keys(server, api_keys),
        admin_keys=security.admin_keys(server),
        metrics_are_open=security.metrics_are_open(server),
        cors_origins=tuple(server["cors_origin"].value or ()),
        weights_dirs=tuple(map(Path, server["weights_dir"].value or ())),
        profile_dir=Path(p) if (p := server["profile_dir"].value) else None,
        voices_dir=Path(p) if (p := server["voices_dir"].value) else None,
        max_voices=server["max_voices"].value,
        rate_limit=server["rate_limit"].value,
        max_realtime_sessions=server["max_realtime_sessions"].value,
        playground=server["playground"].value == "on",
    )


def load(configuration: Configuration, progress: Progress, plugins: Plugins) -> Pipeline:
    """The pipeline that is asked for; one ConfigError with all problems, the server's included."""
    asked = configuration.asked
    flags = asked.flags
    try:
        pipeline = Pipeline.load(
            configuration.model_path,
            variant=flags["variant"],
            device=flags["device"],
            dtype=flags["dtype"],
            ar_engine=flags["ar_engine"],
            compile=flags["compile"],
            layout=cast("PipelineLayout | None", flags["layout"]),
            overrides=asked.overrides,
            config=asked.file,
            on_progress=progress,
            plugins=plugins,
            limits=AdmissionLimits(
                max_in_flight=configuration.server["max_in_flight"].value,
                max_queue=configuration.server["max_queue"].value,
            ),
            network=network_of(configuration.server),
            watchdog_timeout_s=configuration.server["watchdog_timeout_s"].value,
        )
    except ConfigError as error:
        configuration.refuse(error)
        raise
    configuration.refuse()
    return pipeline


async def run(
    context: ServerContext,
    listener: socket.socket,
    drain_timeout_s: float,
    announce: Callable[[str], None],
    on_access: OnAccess = look_away,
) -> None:
    """Serve until SIGINT or SIGTERM: drain open requests, then stop the pipeline. Raises what ends
    the pipeline by itself.

    While it drains, the port stays open and new requests are told to go elsewhere. The pipeline
    fails the requests that outlast the drain, so that each client is told.
    """
    pipeline = context.pipeline
    server = http_server(guarded(context, on_access), drain_timeout_s + LAST_WORDS_S)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = Stopping(context.door, pipeline)
    stopping.listen()
    try:
        async with pipeline:
            stopping.starting = None
            announce(f"{READY}{url_of(listener)}")
            await stopping.wait(answering)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drained(context.door, server, answering), drain_timeout_s)
    except asyncio.CancelledError:
        if not stopping.asked.is_set():
            raise
    finally:
        server.should_exit = True
        await answering
        stopping.close()


async def drained(door: Door, server: HttpServer, answering: asyncio.Task[None]) -> None:
    """Wait until all who are inside are out; then close the port and the connections."""
    await door.empty()
    server.should_exit = True
    await asyncio.wait({answering})


class Stopping:
    """What signals do: the first one stops in an orderly way, the second one kills."""

    def __init__(self, door: Door, pipeline: Pipeline) -> None:
        self._door = door
        self._pipeline = pipeline
        self.asked = asyncio.Event()
        self.starting = asyncio.current_task()
        """The task to interrupt while the pipeline is still starting, None afterwards."""

    def listen(self) -> None:
        """Handle SIGINT and SIGTERM from now on."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    def close(self) -> None:
        """Leave the signals to their defaults again."""
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def wait(self, answering: asyncio.Task[None]) -> None:
        """Until a signal has come, or the server has ended by itself; raises what has ended the
        pipeline."""
        asked = asyncio.create_task(self.asked.wait())
        failed = asyncio.create_task(self._pipeline.failed())
        await asyncio.wait({asked, failed, answering}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()

    def stop(self) -> None:
        """One signal has arrived."""
        if self.asked.is_set():
            os._exit(KILLED_BY_SIGINT)  # which the stages do not survive
        self.asked.set()
        self._door.drain()
        if self.starting is not None:
            self.starting.cancel()


def url_of(listener: socket.socket) -> str:
    """Where clients reach a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
