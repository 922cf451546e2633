"""What an operator can set: a YAML file's fields, and the command line's before them.

All problems are told at once. Knows no HTTP and no environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints
from urllib.parse import urlsplit

import msgspec
import yaml

from omni_router.errors import ConfigError
from omni_router.routing.policies import PolicyName

MIB: Final = 1024 * 1024
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Affinity: TypeAlias = Literal["session", "voice", "prefix"]
Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_NAME: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,128}")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker, as an operator names it."""

    url: str
    name: str = ""
    """Host and port of the URL if it is not set."""
    max_in_flight: Positive | None = None
    """`max_in_flight_per_worker` if it is not set."""
    weight: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one router; each process of it has its share of the bounds."""

    host: str = "127.0.0.1"
    port: Port = 8080
    """0 picks a free one."""
    processes: Positive = 1
    """That listen on the port together."""
    process_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    """First of the ports at which each of them answers alone, for its own metrics."""
    workers: tuple[WorkerSpec, ...] = ()
    launch: Count = 0
    """Workers to start on this machine."""
    launch_arguments: tuple[str, ...] = ()
    """Of `omni serve`, for each of them."""
    gpus: tuple[str | int, ...] = ()
    """Cards of these workers, an entry for each: as in CUDA_VISIBLE_DEVICES, with + for commas."""
    log_dir: str | None = None
    """Where their logs are written."""

    policy: PolicyName = "least_load"
    affinity: tuple[Affinity, ...] = ("voice", "session", "prefix")
    """What keeps requests together; the first that a request has counts."""
    imbalance: Annotated[float, msgspec.Meta(ge=1, le=100)] = 1.5
    """Times its share of all requests that affinity may give a worker."""

    max_in_flight: Positive = 4096
    """Requests with all workers at once."""
    max_in_flight_per_worker: Positive = 256
    max_queue: Count = 256
    """Requests that wait for a place."""
    queue_timeout_s: Seconds = 10.0
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    """Other workers that are asked where one has not begun a request."""
    max_body_mib: Positive = 256
    max_message_mib: Positive = 32
    """Of a WebSocket."""
    connect_timeout_s: Seconds = 2.0

    probe_interval_s: Seconds = 2.0
    probe_timeout_s: Seconds = 2.0
    down_after: Positive = 3
    """Failures in a row."""
    up_after: Positive = 2
    """Successes in a row, of a worker that was down."""
    cut_after_s: Seconds = 30.0
    """Without an answer, until what a worker has begun is given up."""
    slow_start_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """Until a worker that came gets its full share."""

    api_key_file: str | None = None
    admin_key_file: str | None = None
    worker_key_file: str | None = None
    """The key that the router itself has at workers."""
    worker_admin_key_file: str | None = None
    metrics_access: Literal["open", "key", "auto"] = "auto"
    tls_cert: str | None = None
    tls_key: str | None = None
    worker_ca: str | None = None
    """Certificates that workers under https:// are known by, besides the system's."""
    access_log: str | None = None
    journal: str | None = None
    """File that says how far an update of weights has come."""
    drain_timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"


_TYPES: Final = get_type_hints(Settings, include_extras=True)
_NAMES: Final = tuple(field.name for field in fields(Settings))


def read(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Settings of a file, with flags that are not None before them; ConfigError tells all that is
    wrong."""
    given = {} if file is None else _read_file(file)
    where = {name: f"{file}: {name}" for name in given}
    for name, value in flags.items():
        if value is not None:
            given[name], where[name] = value, "--" + name.replace("_", "-")
            where["workers"] = "--worker" if name == "workers" else where.get("workers", "")
    problems: list[str] = []
    found: dict[str, Any] = {}
    for name, value in given.items():
        try:
            found[name] = _convert(name, value, is_typed=where[name].startswith("--"))
        except ConfigError as exc:
            problems.append(f"{where[name]}{exc}")
    settings = replace(Settings(), **found)
    settings = replace(settings, workers=_named(settings.workers, problems))
    problems += _contradictions(settings)
    if problems:
        raise ConfigError("\n".join(problems))
    return settings


def worker_named(spec: WorkerSpec) -> WorkerSpec:
    """With its name, and no slash at the end of its URL; ConfigError if that is none."""
    url = urlsplit(spec.url)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ConfigError(f"{spec.url!r} is no URL of a worker; one is http://127.0.0.1:8000")
    if url.username is not None:
        raise ConfigError(f"the URL of {url.hostname} has a password; use --worker-key-file")
    name = spec.name or url.netloc
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a worker: letters, digits and . _ : - alone")
    return msgspec.structs.replace(spec, name=name, url=spec.url.rstrip("/"))


def _read_file(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--config: {file} cannot be read: {exc}") from exc
    except yaml.YAMLError as exc:
        where = " ".join(str(exc).split())
        raise ConfigError(f"--config: {file} is no YAML: {where}") from exc
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"--config: {file} must hold settings, one a line: name: value")
    return {str(name): value for name, value in found.items()}


def _convert(name: str, value: Any, *, is_typed: bool) -> Any:
    """A setting's value; ConfigError if it is none, or there is no such setting. What is typed on
    the command line is text, where YAML has numbers."""
    if name not in _TYPES:
        near = difflib.get_close_matches(name, _NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_NAMES)}"
        raise ConfigError(f" is no setting; {hint}")
    if name == "workers" and isinstance(value, list | tuple):
        value = [{"url": worker} if isinstance(worker, str) else worker for worker in value]
    try:
        return msgspec.convert(value, _TYPES[name], strict=not is_typed)
    except msgspec.ValidationError as exc:
        raise ConfigError(f": {exc}") from exc


def _named(workers: tuple[WorkerSpec, ...], problems: list[str]) -> tuple[WorkerSpec, ...]:
    found: dict[str, WorkerSpec] = {}
    for spec in workers:
        try:
            worker = worker_named(spec)
        except ConfigError as exc:
            problems.append(f"workers: {exc}")
            continue
        if worker.name in found:
            problems.append(f"workers: two are named {worker.name}; give one another `name`")
        found[worker.name] = worker
    return tuple(found.values())


def _contradictions(settings: Settings) -> list[str]:
    found = []
    if (settings.tls_cert is None) != (settings.tls_key is None):
        found.append("--tls-cert and --tls-key belong together; set both, or neither")
    if settings.launch_arguments and not settings.launch:
        found.append("what follows -- is for workers to launch; say how many with --launch")
    if settings.gpus and not settings.launch:
        found.append("--gpus is for workers to launch; say how many with --launch")
    if settings.process_port is not None and settings.processes == 1:
        found.append("--process-port is for several processes; say how many with --processes")
    if settings.journal is not None and settings.processes > 1:
        found.append("--journal is for one process, which knows all updates; leave --processes out")
    bounds = ("max_in_flight", "max_in_flight_per_worker")
    if low := [name for name in bounds if getattr(settings, name) < settings.processes]:
        found.append(f"{low[0]} must be at least --processes: each has its share of it")
    return found
