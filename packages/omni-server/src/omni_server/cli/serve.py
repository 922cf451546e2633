"""`omni serve`: a pipeline behind HTTP, from the command line to the last open request.

Knows start-up, signals and shutdown. The port answers from the first moment: /health says
"starting" until the pipeline is ready.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from typing import cast

import typer

from omni_core.config import Layout as PipelineLayout
from omni_core.errors import ConfigError
from omni_core.pipeline import AdmissionLimits, Pipeline
from omni_server.app import create_app
from omni_server.cli.configuration import Configuration, command_line, network_of, read
from omni_server.cli.options import (
    ArEngine,
    Compile,
    ConfigPath,
    Device,
    DrainTimeoutS,
    Dtype,
    Host,
    Layout,
    Listen,
    MaxBodyMib,
    MaxInFlight,
    MaxQueue,
    ModelPath,
    Port,
    Remote,
    RequestTimeoutS,
    SecretFile,
    ServedModelName,
    Variant,
    WatchdogTimeoutS,
)
from omni_server.cli.progress import Progress, progress_on
from omni_server.http import HttpServer, bind, http_server
from omni_server.settings import MIB, Settings

READY = "Omni is ready on "
"""What precedes the URL on the line that says so; `omni demo` waits for it."""
KILLED_BY_SIGINT = 130
LAST_WORDS_S = 5.0
"""For a client to read that its request has failed, once the drain is over."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    context: typer.Context,
    model_path: ModelPath = None,
    config: ConfigPath = None,
    variant: Variant = None,
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
) -> None:
    """Serve a checkpoint over OpenAI's HTTP API.

    Settings of one stage are written --STAGE.FIELD VALUE, for instance --thinker.max_running 8.
    """
    configuration = read(command_line(context))
    progress = progress_on(sys.stdout, typer.echo)
    pipeline = load(configuration, progress)
    server = {name: setting.value for name, setting in configuration.server.items()}
    settings = settings_of(configuration)

    def announce(line: str) -> None:
        progress.close()
        typer.echo(line)

    with closing(progress), bind(server["host"], server["port"]) as listener:
        asyncio.run(run(pipeline, settings, listener, server["drain_timeout_s"], announce))


def settings_of(configuration: Configuration) -> Settings:
    """What the HTTP server must know."""
    return Settings(
        served_model_name=configuration.served_model_name,
        max_body_bytes=configuration.server["max_body_mib"].value * MIB,
        request_timeout_s=configuration.server["request_timeout_s"].value,
    )


def load(configuration: Configuration, progress: Progress) -> Pipeline:
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
    pipeline: Pipeline,
    settings: Settings,
    listener: socket.socket,
    drain_timeout_s: float,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM: drain open requests, then stop the pipeline. Raises what ends
    the pipeline by itself.

    The pipeline fails the requests that outlast the drain, so that each client is told.
    """
    server = http_server(create_app(pipeline, settings), drain_timeout_s + LAST_WORDS_S)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = Stopping(server, pipeline)
    stopping.listen()
    try:
        async with pipeline:
            stopping.starting = None
            announce(f"{READY}{url_of(listener)}")
            await stopping.wait(answering)
            await asyncio.wait({answering}, timeout=drain_timeout_s)
    except asyncio.CancelledError:
        if not stopping.asked.is_set():
            raise
    finally:
        server.should_exit = True
        await answering
        stopping.close()


class Stopping:
    """What signals do: the first one stops in an orderly way, the second one kills."""

    def __init__(self, server: HttpServer, pipeline: Pipeline) -> None:
        self._server = server
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
        self._server.should_exit = True
        if self.starting is not None:
            self.starting.cancel()


def url_of(listener: socket.socket) -> str:
    """Where clients reach a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
