"""From a command line and its --config file to checked settings, of the server and of the pipeline.

Knows the server's own settings; those of pipelines and stages are core's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from omni_core import devices
from omni_core.config import (
    Asked,
    ConfigFile,
    Resolved,
    Setting,
    checkpoint_path,
    resolve,
)
from omni_core.config.draft import Given
from omni_core.config.fields import PIPELINE_FIELDS, Field, choice, number, text, whole, words
from omni_core.errors import ConfigError
from omni_core.hub import checkpoint_directory, model_name
from omni_core.pipeline import WATCHDOG_TIMEOUT_S, AdmissionLimits, Network, model_info
from omni_core.plugins import Plugins
from omni_core.specs import PipelineConfig
from omni_core.validate import nearest
from omni_server.cli.overrides import parse_overrides

TEXT_ONLY: Final = "text"
"""By convention, the variant of a pipeline that has no speech stages."""
_LIMITS: Final = AdmissionLimits()
_ORIGIN: Final = re.compile(r"\*|https?://[^/\s,]+")
_DIRECTORY: Final = re.compile(r"[^\0]+")

SERVER_FIELDS: Final[Mapping[str, Field]] = {
    "host": text("address to listen on"),
    "port": whole("port to listen on; 0 picks a free one", least=0, most=65535),
    "served_model_name": text("the id clients ask for", optional=True),
    "max_body_mib": whole("largest request body, MiB", least=1),
    "max_in_flight": whole("requests in the stages at once", least=1),
    "max_queue": whole("requests that wait for a place in the stages", least=0),
    "listen": text("where processes of other hosts dial in, tcp://HOST:PORT", optional=True),
    "secret_file": text("the secret that other hosts must have as well", optional=True),
    "remote": text("processes that run on other hosts, with commas", optional=True),
    "request_timeout_s": number(
        "the longest a request may take, seconds; null is no limit", least=0.001, optional=True
    ),
    "watchdog_timeout_s": number(
        "how long a process with requests may not answer, seconds; null is for ever",
        least=0.1,
        optional=True,
    ),
    "drain_timeout_s": number("how long Ctrl-C waits for open requests, seconds", least=0),
    "api_key_file": text("keys that clients need, one a line", optional=True),
    "admin_key_file": text("keys of operators, one a line", optional=True),
    "weights_dir": words("directories that new weights may be loaded from", _DIRECTORY),
    "profile_dir": text("directory for recordings of torch's profiler", optional=True),
    "voices_dir": text("directory that keeps uploaded voices", optional=True),
    "max_voices": whole("uploaded voices that are kept at most", least=0),
    "metrics_access": choice("who may read /metrics", "auto", "open", "key"),
    "cors_origin": words("origins of web pages that may call the API, or *", _ORIGIN),
    "rate_limit": whole("requests a minute for each client", least=1, optional=True),
    "max_realtime_sessions": whole("realtime sessions at once", least=1),
    "playground": choice("whether there is a page to talk with the model, at /", "on", "off"),
    "access_log": text("file for one line of JSON a request; - is standard output", optional=True),
}
"""What may stand under `server` in the file, and as `--name` on the command line."""
SERVER_DEFAULTS: Final[Mapping[str, Any]] = {
    "host": "127.0.0.1",
    "port": 8000,
    "served_model_name": None,
    "max_body_mib": 256,
    "max_in_flight": _LIMITS.max_in_flight,
    "max_queue": _LIMITS.max_queue,
    "listen": None,
    "secret_file": None,
    "remote": None,
    "request_timeout_s": None,
    "watchdog_timeout_s": WATCHDOG_TIMEOUT_S,
    "drain_timeout_s": 30.0,
    "api_key_file": None,
    "admin_key_file": None,
    "weights_dir": None,
    "profile_dir": None,
    "voices_dir": None,
    "max_voices": 100,
    "metrics_access": "auto",
    "cors_origin": None,
    "rate_limit": None,
    "max_realtime_sessions": 128,
    "playground": "on",
    "access_log": None,
}
"""`served_model_name` None is the directory's name, or the hub id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What was typed; None is not given."""

    model_path: str | None = None
    config: Path | None = None
    flags: Mapping[str, str | None] = field(default_factory=dict)
    """Settings of the pipeline."""
    server_flags: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    """The rest: --STAGE.FIELD VALUE."""
    options: Sequence[str] = ()
    """What the command declares, to suggest for misspelt ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is asked for, with the server's part checked."""

    model_path: str | None
    asked: Asked
    server: Mapping[str, Setting]
    problems: tuple[str, ...]
    """Of the server's part and of the command line; the pipeline's come on top."""

    @property
    def served_model_name(self) -> str:
        """The id clients ask for."""
        named: str | None = self.server["served_model_name"].value
        return named or model_name(checkpoint_path(self.model_path, self.asked.file))

    def refuse(self, error: ConfigError | None = None) -> None:
        """Raise one ConfigError with these problems and those of `error`; nothing if none are."""
        found = [*self.problems, *(error.problems if error else ())]
        if found:
            raise ConfigError(found) from error


def command_line(context: typer.Context) -> CommandLine:
    """What was typed, of a command that declares the options of `omni_server.cli.options`."""
    given = context.params
    return CommandLine(
        model_path=given.get("model_path"),
        config=Path(given["config"]) if given.get("config") else None,
        flags={name: given.get(name) for name in PIPELINE_FIELDS} | _short_for(given),
        server_flags={name: _typed(given.get(name)) for name in SERVER_FIELDS},
        arguments=context.args,
        options=[option for parameter in context.command.params for option in parameter.opts],
    )


def _short_for(given: Mapping[str, Any]) -> dict[str, str]:
    """The flag that --text-only stands for; ConfigError if another variant is asked for as well."""
    if not given.get("text_only"):
        return {}
    if given["variant"] not in (None, TEXT_ONLY):
        raise ConfigError(
            f"--text-only is --variant {TEXT_ONLY}, and --variant {given['variant']} is asked for "
            "as well; leave one of them out"
        )
    return {"variant": TEXT_ONLY}


def _typed(value: Any) -> Any:
    """What was typed of an option; of one that may be given again a list, None if it was not."""
    return (list(value) or None) if isinstance(value, tuple) else value


def read(typed: CommandLine) -> Configuration:
    """Read the file and the rest of the command line; ConfigError if there is no such file."""
    file = ConfigFile() if typed.config is None else ConfigFile.read(typed.config)
    overrides, problems = parse_overrides(typed.arguments, typed.options)
    server = server_settings(typed.server_flags, file, problems)
    return Configuration(
        model_path=typed.model_path,
        asked=Asked(flags=typed.flags, overrides=overrides, file=file),
        server=server,
        problems=tuple(problems),
    )


def server_settings(
    flags: Mapping[str, Any], file: ConfigFile, problems: list[str]
) -> dict[str, Setting]:
    """Default < file < flags; what is wrong is added to `problems` and left at its default."""
    settings = {name: Setting(value=v, source="default") for name, v in SERVER_DEFAULTS.items()}
    section = file.values.get("server")
    if section is not None and not isinstance(section, dict):
        problems.append(f"{file.where('server')}: server: expected {{NAME: value}}")
        section = None
    for name in section or {}:
        if name not in SERVER_FIELDS:
            place = f"{file.where('server', name)}: server.{name}"
            problems.append(f"{place}: no such setting; {nearest(name, list(SERVER_FIELDS))}")
    for name, spec in SERVER_FIELDS.items():
        if flags.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            given = Given(value=flags[name], place=flag, source=flag, is_text=False)
        elif name in (section or {}):
            given = Given.in_file(file, "server", name)
        else:
            continue
        try:
            settings[name] = Setting(value=given.value_for(spec), source=given.source)
        except ValueError:
            problems.append(f"{given.place}: got {given.value!r}; expected {spec.expected}")
    return settings


def network_of(server: Mapping[str, Setting]) -> Network | None:
    """How other hosts take part, None if none does; a ConfigError says what is missing."""
    listen, secret, remote = (server[n].value for n in ("listen", "secret_file", "remote"))
    if not (listen or secret or remote):
        return None
    if not (listen and secret and remote):
        raise ConfigError(
            "server: listen, secret_file and remote go together: where other hosts dial in, the "
            "secret they must have, and the processes they run"
        )
    return Network(listen=listen, secret_file=Path(secret), guests=guests(server))


def guests(server: Mapping[str, Setting]) -> tuple[str, ...]:
    """The processes that run on other hosts."""
    named: str = server["remote"].value or ""
    return tuple(name.strip() for name in named.split(",")) if named else ()


def resolve_pipeline(
    configuration: Configuration, name: str | None = None, plugins: Plugins | None = None
) -> Resolved:
    """The pipeline of the checkpoint, or the one named, or the only one installed, resolved for
    any machine: cards that this one lacks are no problem."""
    plugins = plugins or Plugins().discover()
    asked = configuration.asked
    named = configuration.model_path or asked.file.values.get("model_path")
    info = None
    if named is None:
        pipeline = choose(plugins, name)
    else:
        directory = checkpoint_directory(checkpoint_path(named, asked.file), weights=False)
        pipeline = plugins.pipeline_at(directory)
        info = model_info(pipeline, directory)
    try:
        cards = devices.cuda_device_count()
        resolved = resolve(pipeline, asked, cards=cards, here=False, info=info)
    except ConfigError as error:
        configuration.refuse(error)
        raise
    configuration.refuse()
    return resolved


def choose(plugins: Plugins, name: str | None) -> PipelineConfig:
    """The pipeline of that name, or the only one installed."""
    pipelines = plugins.pipelines()
    if name is None and len(pipelines) == 1:
        return next(iter(pipelines.values()))
    if name not in pipelines:
        known = ", ".join(sorted(pipelines)) or "none"
        raise ConfigError(f"give --model-path DIR or --pipeline NAME; installed: {known}")
    return pipelines[name]
